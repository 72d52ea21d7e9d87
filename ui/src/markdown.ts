// Markdown to safe HTML, in blocks. While a text grows, only its last block is rendered again.
// Invariants: raw HTML is shown as text; everything passes DOMPurify; nothing is loaded from other sites.
import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";

export interface Block {
  /** The offset in the text, which identifies the block while the text grows. */
  start: number;
  source: string;
  /** The rendered text: the source, with open marks closed while the text grows. */
  shown: string;
  html: string;
}

const md = new MarkdownIt({ html: false, linkify: true, breaks: false });
md.validateLink = (url: string) => /^(https?:|mailto:|tel:|data:image\/(png|jpe?g|gif|webp);|#|\/(?!\/)|\.)/i.test(url.trim());

const escape = md.utils.escapeHtml;

md.renderer.rules["fence"] = (tokens, index) => {
  const token = tokens[index]!;
  return code(token.content, token.info.trim().split(/\s+/)[0] ?? "");
};
md.renderer.rules["code_block"] = (tokens, index) => code(tokens[index]!.content, "");

function code(text: string, language: string): string {
  const name = escape(language);
  const label = `<span class="language">${name || "text"}</span>`;
  const button = '<button type="button" class="copy">Copy</button>';
  const inner = `<code class="language-${name}">${escape(text)}</code>`;
  return `<div class="code"><div class="bar">${label}${button}</div><pre tabindex="0">${inner}</pre></div>`;
}

md.renderer.rules["image"] = (tokens, index) => {
  const token = tokens[index]!;
  const src = String(token.attrGet("src") ?? "");
  const alt = escape(token.content || src);
  if (/^data:image\//i.test(src) || /^\/(?!\/)/.test(src)) return `<img src="${escape(src)}" alt="${alt}" loading="lazy">`;
  return `<a href="${escape(src)}">${alt} (external picture)</a>`;
};

// Formulas: the source stays exactly as it was written, with its delimiters, until math.ts draws it.
const CLOSING: Record<string, string> = { "\\(": "\\)", "\\[": "\\]", $$: "$$" };

const ONE_DOLLAR = /\$(?=[^\s$])(?:[^$\\\n]|\\.)+?\$(?![\d$])/y;

md.inline.ruler.before("escape", "math", (state, silent) => {
  const { src, pos } = state;
  const closing = CLOSING[src.slice(pos, pos + 2)];
  let end = -1;
  if (closing !== undefined) {
    // A text without this mark is searched once, not once for every formula that is never closed.
    if (state.env[closing] === src) return false;
    end = src.indexOf(closing, pos + 2);
    if (end === -1) state.env[closing] = src;
    else end += closing.length;
  } else if (src[pos] === "$") {
    // One dollar: no space inside it, and no digit after it, so that prices stay prices.
    ONE_DOLLAR.lastIndex = pos;
    const match = ONE_DOLLAR.exec(src)?.[0];
    if (match !== undefined && !/\s\$$/.test(match)) end = pos + match.length;
  }
  if (end <= pos + 2) return false;
  if (!silent) state.push("math", "", 0).content = src.slice(pos, end);
  state.pos = end;
  return true;
});

md.block.ruler.before(
  "fence",
  "math_block",
  (state, startLine, endLine, silent) => {
    const lineOf = (line: number) => state.src.slice(state.bMarks[line]! + state.tShift[line]!, state.eMarks[line]!);
    const opening = lineOf(startLine).trim().slice(0, 2);
    if (opening !== "$$" && opening !== "\\[") return false;
    const closing = CLOSING[opening]!;
    for (let line = startLine; line < endLine; line++) {
      const text = lineOf(line).trim();
      const isOpening = line === startLine && text.length <= 3;
      if (isOpening || !text.endsWith(closing)) continue;
      if (silent) return true;
      const token = state.push("math", "", 0);
      token.content = state.getLines(startLine, line + 1, state.blkIndent, false).trim();
      token.map = [startLine, line + 1];
      state.line = line + 1;
      return true;
    }
    return false;
  },
  { alt: ["paragraph", "reference", "blockquote", "list"] },
);

md.renderer.rules["math"] = (tokens, index) => {
  const { content } = tokens[index]!;
  const wide = content.startsWith("$$") || content.startsWith("\\[");
  return `<span class="math${wide ? " wide" : ""}">${escape(content)}</span>`;
};

// Task lists: `- [x]` becomes a ticked box.
md.core.ruler.after("inline", "tasks", (state) => {
  state.tokens.forEach((token, n) => {
    const item = state.tokens[n - 2];
    const first = token.children?.[0];
    const mark = /^\[([ xX])\] /.exec(token.content)?.[1];
    if (token.type !== "inline" || item?.type !== "list_item_open" || mark === undefined || first?.type !== "text") return;
    const box = new state.Token("task", "", 0);
    box.content = mark === " " ? "☐" : "☑";
    first.content = first.content.slice("[x] ".length);
    token.children!.unshift(box);
    item.attrJoin("class", "task-item");
  });
});
md.renderer.rules["task"] = (tokens, index) => `<span class="task">${tokens[index]!.content}</span> `;

// The policy allows no style attribute, and markdown-it aligns cells with one.
for (const cell of ["td_open", "th_open"])
  md.renderer.rules[cell] = (tokens, index, options, _env, self) => {
    const token = tokens[index]!;
    const side = /(left|center|right)/.exec(String(token.attrGet("style") ?? ""))?.[1];
    token.attrs = side === undefined ? [] : [["class", `to-${side}`]];
    return self.renderToken(tokens, index, options);
  };
// Headings of an answer stand below the heading of the answer, however they were numbered.
md.renderer.rules["heading_open"] = (tokens, index) => `<h3 class="level-${tokens[index]!.tag.slice(1)}">`;
md.renderer.rules["heading_close"] = () => "</h3>";
md.renderer.rules["table_open"] = () => '<div class="table" tabindex="0"><table>';
md.renderer.rules["table_close"] = () => "</table></div>";

const ALLOWED_TAGS =
  "a b blockquote br button code del div em h3 hr img li ol p pre s span strong table tbody td th thead tr ul";
const ALLOWED_ATTR = ["href", "src", "alt", "title", "class", "start", "type", "tabindex", "loading", "rel", "target"];

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A") return;
  node.setAttribute("rel", "noopener noreferrer");
  node.setAttribute("target", "_blank");
});

const RULES = { ALLOWED_TAGS: ALLOWED_TAGS.split(" "), ALLOWED_ATTR, ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false };

export const sanitise = (html: string): string => DOMPurify.sanitize(html, RULES);

/** Sanitise many pieces in one pass: the pass itself is the expensive part. */
function sanitiseAll(pieces: string[]): string[] {
  if (pieces.length === 0) return [];
  const joined = pieces.map((piece) => `<div>${piece}</div>`).join("");
  const { children } = DOMPurify.sanitize(joined, { ...RULES, RETURN_DOM_FRAGMENT: true });
  // A piece that closes its wrapper would shift the others: then sanitise every piece alone.
  if (children.length !== pieces.length) return pieces.map(sanitise);
  return [...children].map((child) => child.innerHTML);
}

/** Split a text into its top-level blocks, from `start` on. */
function cut(text: string, start: number): { start: number; source: string }[] {
  const tail = text.slice(start);
  const lines = [0];
  for (let at = tail.indexOf("\n"); at !== -1; at = tail.indexOf("\n", at + 1)) lines.push(at + 1);
  const borders: number[] = [];
  for (const token of md.parse(tail, {})) {
    if (token.level !== 0 || token.map === null || token.nesting === -1) continue;
    borders.push(lines[token.map[0]] ?? tail.length);
  }
  return borders.map((border, n) => ({
    start: start + border,
    source: tail.slice(border, borders[n + 1] ?? tail.length),
  }));
}

/** Close open marks at the end of a growing text, so that stars and backticks do not flicker. */
export function mend(source: string): string {
  if (/^\s*(```|~~~| {4})/.test(source)) return source;
  const text = source.replace(/[*_`~]+$/, "");
  const ticks = text.match(/`+/g) ?? [];
  if (ticks.length % 2 === 1) return text + ticks.at(-1);
  const line = text.slice(text.lastIndexOf("\n") + 1);
  return (line.match(/\*\*(?=\S)|(?<=\S)\*\*/g) ?? []).length % 2 === 1 ? `${text.trimEnd()}**` : text;
}

/** The blocks of a text. Unchanged blocks at the beginning are reused. */
export function blocks(text: string, before: Block[] = [], growing = false): Block[] {
  // The last block may still change its type (a list continues, a heading gets its underline), so it is never reused.
  const kept: Block[] = [];
  for (const block of before.slice(0, -1)) {
    if (!text.startsWith(block.source, block.start)) break;
    kept.push(block);
  }
  const last = kept.at(-1);
  const from = last === undefined ? 0 : last.start + last.source.length;
  const fresh = cut(text, from).map(({ start, source }, n, { length }) => {
    const shown = growing && n === length - 1 ? mend(source) : source;
    const old = before.findLast((block) => block.start === start && block.shown === shown);
    return { start, source, shown, html: old?.html ?? null };
  });
  const made = sanitiseAll(fresh.filter((block) => block.html === null).map((block) => md.render(block.shown)));
  return [...kept, ...fresh.map((block) => ({ ...block, html: block.html ?? made.shift() ?? "" }))];
}
