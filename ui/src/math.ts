// Math: KaTeX turns TeX into MathML, which the browser draws. Loaded with the first formula; it needs no style and no font.
import DOMPurify from "dompurify";
import katex from "katex";

const TEX_MAX = 5_000;
const TAGS =
  "math menclose mfrac mi mn mo mover mpadded mphantom mroot mrow ms mspace msqrt mstyle msub msubsup msup mtable mtd mtext mtr munder munderover semantics";
const ATTRIBUTES =
  "accent accentunder columnalign columnlines columnspacing depth display displaystyle fence height linethickness lspace mathvariant maxsize minsize movablelimits notation rowlines rowspacing rspace scriptlevel separator stretchy symmetric voffset width xmlns";
const RULES = { ALLOWED_TAGS: TAGS.split(" "), ALLOWED_ATTR: ATTRIBUTES.split(" "), FORBID_CONTENTS: ["annotation"], ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false };

/** Return the MathML of a formula, or null if it is too long or not valid TeX. */
function mathml(tex: string, display: boolean): string | null {
  if (tex.length > TEX_MAX) return null;
  try {
    const html = katex.renderToString(tex, { output: "mathml", displayMode: display, throwOnError: true, strict: "ignore", trust: false, maxExpand: 500 });
    return DOMPurify.sanitize(html, RULES);
  } catch {
    return null; // the source stays
  }
}

/** Draw the formulas below an element, once each. The source of a formula stays as its tooltip. */
export function drawMath(within: Element): void {
  for (const place of within.querySelectorAll(".math:not(.done)")) {
    place.classList.add("done");
    const source = place.textContent ?? "";
    const { tex, display } = texOf(source);
    const drawn = mathml(tex, display);
    if (drawn !== null) place.innerHTML = drawn;
    place.setAttribute("title", source);
  }
}

/** Remove the delimiters of a formula. */
function texOf(source: string): { tex: string; display: boolean } {
  const wide = source.startsWith("$$") || source.startsWith("\\[") || source.startsWith("\\(");
  const tex = wide ? source.slice(2, -2) : source.slice(1, -1);
  return { tex: tex.trim(), display: source.startsWith("$$") || source.startsWith("\\[") };
}
