// Markdown to safe HTML, in blocks. While a text grows, only its last block is rendered again.
// Invariants: raw HTML is shown as text; everything passes DOMPurify; nothing is loaded from other sites.
import DOMPurify from "dompurify";
import MarkdownIt from "markdown-it";
import { t } from "./text";

export interface Block {
  start: number; // the offset in the text, which identifies the block while the text grows
  source: string;
  shown: string; // The rendered text: the source, with open marks closed while the text grows.
  context: string; // the definitions of links and footnotes elsewhere in the text, if the block may use them
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

/** Longer blocks of code can be folded. */
const FOLD_LINES = 30;
const isMarkup = (text: string, language: string): boolean => /^(html|svg)$/i.test(language) || (/^xml$/i.test(language) && /^\s*(<\?xml[^>]*>\s*)?<svg\b/i.test(text));
export const countLines = (code: string): number => code.replace(/\n$/, "").split("\n").length;

function code(text: string, language: string): string {
  const name = escape(language);
  const label = `<span class="language">${name || escape(t("code.text"))}</span>`;
  const preview = isMarkup(text, language) ? `<button type="button" class="preview" aria-pressed="false">${escape(t("code.preview"))}</button>` : "";
  const wrap = `<button type="button" class="wrap" aria-pressed="false">${escape(t("code.wrap"))}</button>`;
  const save = `<button type="button" class="save">${escape(t("code.download"))}</button>`;
  const copy = `<button type="button" class="copy">${escape(t("common.copy"))}</button>`;
  const inner = `<code class="language-${name}">${escape(text)}</code>`;
  const fold = countLines(text) > FOLD_LINES ? `<button type="button" class="unfold" aria-expanded="true">${escape(t("code.show_less"))}</button>` : "";
  return `<div class="code"><div class="bar">${label}${preview}${wrap}${save}${copy}</div><pre tabindex="0">${inner}</pre>${fold}</div>`;
}

const ATTACHMENT = /^\/api\/conversations\/[\w-]{1,128}\/attachments\/[0-9a-f]{64}$/;

/** The address of a picture of another site that may be loaded after a click, or null. */
export function foreignPicture(address: string): URL | null {
  if (!/^https:\/\//i.test(address) || /[\s\u0000-\u001f\u007f\\]/.test(address) || !URL.canParse(address)) return null;
  const url = new URL(address);
  return url.username === "" && url.password === "" && /^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$/.test(url.hostname) ? url : null;
}

// Own pictures are shown. Loading a picture of another site tells that site who reads, so it takes a click, and happens in a frame (embed.ts).
md.renderer.rules["image"] = (tokens, index) => {
  const token = tokens[index]!;
  const src = String(token.attrGet("src") ?? "");
  const name = token.content || src;
  if (ATTACHMENT.test(src)) return `<span class="picture own" title="${escape(name)}"><a href="${escape(src)}">${escape(name)}</a></span>`;
  if (/^data:image\//i.test(src) || /^\/(?!\/)/.test(src)) return `<img src="${escape(src)}" alt="${escape(name)}" loading="lazy">`;
  const foreign = foreignPicture(src);
  const link = `<a href="${escape(src)}">${escape(t("answer.external_picture", { name }))}</a>`;
  if (foreign === null) return link;
  const button = `<button type="button" class="show">${escape(t("answer.show_picture", { site: foreign.host }))}</button>`;
  return `<span class="picture" title="${escape(src)}">${button} ${link}</span>`;
};

// Footnotes: the definition is shown where it stands. The links have no ids, which would clash between answers: prose.tsx finds the other end.
const NOTE = /^\[\^([^\]\s]{1,50})\]:[ \t]*/;

md.block.ruler.before(
  "reference",
  "footnote",
  (state, startLine, endLine, silent) => {
    const lineOf = (line: number) => state.src.slice(state.bMarks[line]! + state.tShift[line]!, state.eMarks[line]!);
    const match = NOTE.exec(lineOf(startLine));
    if (match === null || state.sCount[startLine]! - state.blkIndent >= 4) return false;
    if (silent) return true;
    const lines = [lineOf(startLine).slice(match[0].length)];
    let line = startLine + 1;
    // The definition goes on until a blank line, or the next definition. An indented paragraph belongs to it too.
    for (; line < endLine; line++) {
      const [text, indented] = [lineOf(line), state.sCount[line]! - state.blkIndent >= 2];
      const goesOn = text === "" ? line + 1 < endLine && lineOf(line + 1) !== "" && state.sCount[line + 1]! - state.blkIndent >= 2 : indented || lines.at(-1) !== "";
      if (!goesOn || NOTE.test(text)) break;
      lines.push(text);
    }
    const open = state.push("footnote_open", "p", 1);
    open.content = match[1]!;
    open.map = [startLine, line];
    const inline = state.push("inline", "", 0);
    inline.content = lines.join("\n").trim();
    inline.map = [startLine, line];
    inline.children = [];
    state.push("footnote_close", "p", -1);
    state.line = line;
    return true;
  },
  { alt: ["paragraph", "reference"] },
);

const REFERENCE = /\[\^([^\]\s]{1,50})\]/y;

md.inline.ruler.before("link", "footnote_reference", (state, silent) => {
  REFERENCE.lastIndex = state.pos;
  const match = state.src[state.pos] === "[" ? REFERENCE.exec(state.src) : null;
  if (match === null) return false;
  const { notes, growing } = state.env as Partial<Environment>;
  // The definition comes at the end of an answer, so a number is believed while the answer grows.
  if (!notes?.has(match[1]!) && !(growing && /^\d{1,3}$/.test(match[1]!))) return false;
  if (!silent) state.push("footnote_reference", "", 0).content = match[1]!;
  state.pos += match[0].length;
  return true;
});

const noteLink = (to: string, label: string): string => `<a class="note" href="#${to}-${escape(encodeURIComponent(label))}">${escape(label)}</a>`;
md.renderer.rules["footnote_reference"] = (tokens, index) => `<sup>${noteLink("note", tokens[index]!.content)}</sup>`;
md.renderer.rules["footnote_open"] = (tokens, index) => `<p class="footnote">${noteLink("text", tokens[index]!.content)} `;
md.renderer.rules["footnote_close"] = () => "</p>";

/** What a block needs of the rest of the text: the links and footnotes defined elsewhere. */
type Environment = { references: Record<string, { title: string; href: string }>; notes: Set<string>; growing: boolean };
const DEFINITION = /^ {0,3}\[[^\]\n]{1,200}\]:.*$/gm;
const GROWING = "\u0000";
const contextOf = (text: string, growing: boolean): string => (growing ? GROWING : "") + (text.includes("]:") ? (text.match(DEFINITION) ?? []).join("\n") : "");

function environmentOf(context: string): Environment {
  const found = context.replace(GROWING, "").split("\n").map((line) => line.trim());
  const notes = found.map((line) => NOTE.exec(line)?.[1]).filter((label) => label !== undefined);
  const env: Environment = { references: {}, notes: new Set(notes), growing: context.startsWith(GROWING) };
  md.parse(found.filter((line) => !NOTE.test(line)).join("\n\n"), env);
  return env;
}

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

const ALLOWED_TAGS = "a b blockquote br button code del div em h3 hr img li ol p pre s span strong sup table tbody td th thead tr ul";
const ALLOWED_ATTR = ["href", "src", "alt", "title", "class", "start", "type", "tabindex", "loading", "rel", "target", "aria-pressed", "aria-expanded"];

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.tagName !== "A" || node.classList.contains("note")) return;
  node.setAttribute("rel", "noopener noreferrer");
  node.setAttribute("target", "_blank");
});

const RULES = { ALLOWED_TAGS: ALLOWED_TAGS.split(" "), ALLOWED_ATTR, ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false };
const sanitise = (html: string): string => DOMPurify.sanitize(html, RULES);

/** Parse HTML that may hold nothing but spans with classes, which is all that highlighting makes. */
export function spansOf(html: string): DocumentFragment | null {
  const { content } = Object.assign(document.createElement("template"), { innerHTML: html });
  const isSpan = (element: Element) => element.tagName === "SPAN" && element.attributes.length === 1 && element.hasAttribute("class");
  return [...content.querySelectorAll("*")].every(isSpan) ? content : null;
}

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
  return borders.map((border, n) => ({ start: start + border, source: tail.slice(border, borders[n + 1] ?? tail.length) }));
}

const FENCE = /^[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)*(`{3,}|~{3,})(.*)$/;
/** What a block, a list item, a heading or a row of a table begins with. */
const BEGINS = /^(?:[ \t]*(?:>|(?:[-*+]|\d{1,9}[.)])(?=[ \t])|#{1,6}(?=[ \t])|\|))*[ \t]*/;
/** A last line that may become a list, a heading, an underline or a rule: nobody knows yet. */
const UNDECIDED = /^[ \t>]*(?:[-=_*+][-=_*+ \t]*|\d{1,3}[.)]?|#{1,6}|\|)[ \t]*$/;
const UNDECIDED_MAX = 80;
/** A table without its second row is not a table yet. */
const HALF_TABLE = /^[ \t]*\|[^\n]*(?:\n[ \t:|-]*)?$/;
const MEND_MAX = 5_000;

/** Close open marks at the end of a growing text and hold back half ones, so that the text does not jump when the other half arrives. */
export function mend(source: string): string {
  if (/^(\t| {4})/.test(source)) return source;
  const lines = source.split("\n");
  let fence: string | null = null;
  for (const [n, line] of lines.entries()) {
    const [, mark, info] = FENCE.exec(line) ?? [];
    if (mark === undefined) continue;
    const isLast = n === lines.length - 1;
    if (fence === null && !info!.includes("`")) {
      if (isLast) return lines.slice(0, -1).join("\n"); // the language is not complete
      fence = mark;
    } else if (fence !== null && mark.startsWith(fence) && info!.trim() === "") {
      if (isLast) return source;
      fence = null;
    }
  }
  if (fence !== null) return source.replace(/\n[ \t>]*(`{1,2}|~{1,2})$/, "\n");
  if (HALF_TABLE.test(source)) return "";
  const [, formula, rest] = /^\s*(\$\$|\\\[)([^]*)$/.exec(source) ?? [];
  if (formula !== undefined && !rest!.includes(CLOSING[formula]!)) return "";
  if (lines.at(-1)!.length <= UNDECIDED_MAX && UNDECIDED.test(lines.at(-1)!)) lines[lines.length - 1] = "";
  // Marks do not cross the border of a block, a list item or a cell.
  let first = lines.length - 1;
  while (first > 0 && lines[first]!.trim() !== "" && BEGINS.exec(lines[first]!)![0].trim() === "") first--;
  const last = lines.slice(first).join("\n");
  let begin = BEGINS.exec(last)![0].length;
  if (last.slice(0, begin).includes("|")) begin = last.lastIndexOf("|") + 1;
  if (last.length - begin > MEND_MAX) return lines.join("\n");
  const before = lines.slice(0, first).join("\n") + (first > 0 ? "\n" : "");
  return before + last.slice(0, begin) + closeMarks(last.slice(begin), /[-*+.)]\s+$/.test(last.slice(0, begin)));
}

const RUN = /([*_~`])\1*/y;
const runAt = (text: string, at: number): string => ((RUN.lastIndex = at), RUN.exec(text)![0]);

function closeMarks(source: string, isItem: boolean): string {
  let text = source;
  const open: string[] = [];
  const close = (kept: string): string => {
    if (open.length === 0) return kept;
    let end = kept.trimEnd();
    while (open.length > 0 && end.endsWith(open.at(-1)!)) end = end.slice(0, -open.pop()!.length).trimEnd();
    return end + open.reverse().join("");
  };
  if (isItem && /^\[[ xX]?\]?$/.test(text)) return "";
  for (let at = 0; at < text.length; ) {
    const char = text[at]!;
    const two = text.slice(at, at + 2);
    const closing = CLOSING[two];
    if (closing !== undefined) {
      const end = text.indexOf(closing, at + 2);
      if (end === -1) return close(text.slice(0, at)); // a formula is shown when it is complete
      at = end + 2;
    } else if (char === "\\") {
      if (two === char) return close(text.slice(0, at));
      at += 2;
    } else if (char === "$") {
      ONE_DOLLAR.lastIndex = at;
      const formula = ONE_DOLLAR.exec(text)?.[0];
      if (formula === undefined && /^\$([^\s\d$][^\n$]{0,60})?$/.test(text.slice(at))) return close(text.slice(0, at));
      at += formula?.length ?? 1;
    } else if (char === "`") {
      const run = runAt(text, at);
      let end = at + run.length;
      while (end < text.length && !(text[end] === "`" && runAt(text, end) === run)) end += text[end] === "`" ? runAt(text, end).length : 1;
      if (end >= text.length) {
        const inner = text.slice(at + run.length).replace(/`+$/, "");
        return inner.trim() === "" ? close(text.slice(0, at)) : close(text.slice(0, at) + run + inner + run);
      }
      at = end + run.length;
    } else if (char === "[" || two === "![") {
      const label = at + (char === "!" ? 2 : 1);
      const end = text.indexOf("]", label);
      const whole = end !== -1 && (text[end + 1] !== "(" ? end + 1 < text.length : text.indexOf(")", end) !== -1);
      const held = char === "!" || text[label] === "^";
      if (text[label] === "^" && end !== -1) at = end + 1;
      else if (whole) at = char === "!" ? end + 1 : at + 1;
      else if (held) return close(text.slice(0, at));
      else text = text.slice(0, at) + (end === -1 ? text.slice(label) : text.slice(label, end)); // a link that is not complete is its text
    } else if ("*_~".includes(char)) {
      const run = runAt(text, at);
      const [before, after] = [text[at - 1] ?? " ", text[at + run.length]];
      if (after === undefined) return close(text.slice(0, at));
      const within = char === "_" && /\w/.test(before) && /\w/.test(after);
      const known = open.findLastIndex((mark) => mark[0] === char);
      if (!within && known !== -1 && /\S/.test(before)) {
        const left = open[known]!.slice(run.length);
        open.length = known;
        if (left !== "") open.push(left);
      } else if (!within && /\S/.test(after) && run.length <= 3 && (char !== "~" || run.length === 2)) open.push(run);
      at += run.length;
    } else at++;
  }
  return close(text);
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
  const definitions = contextOf(text, growing);
  const all = [...kept, ...cut(text, from)].map(({ start, source }, n, { length }) => {
    const shown = growing && n === length - 1 ? mend(source) : source;
    const context = source.includes("[") ? definitions : "";
    const old = n < kept.length ? kept[n] : before.findLast((block) => block.start === start);
    const same = old !== undefined && old.source === source && old.shown === shown && old.context === context;
    return same ? old : { start, source, shown, context, html: old !== undefined && old.shown === shown && old.context === context ? old.html : null };
  });
  const environments = new Map<string, Environment>();
  const made = all.filter((block) => block.html === null).map(({ shown, context }) => {
    const env = environments.get(context) ?? environmentOf(context);
    environments.set(context, env);
    return md.render(shown, { ...env });
  });
  const clean = sanitiseAll(made);
  return all.map((block) => (block.html === null ? { ...block, html: clean.shift() ?? "" } : (block as Block)));
}
