// Texts: growing Markdown, plain text, and texts that are too long for either.
import { signal } from "@preact/signals";
import { memo } from "./memo";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Block } from "./markdown";
import { morph } from "./morph";
import { showOwnPictures } from "./signed";
import { language, t } from "./text";
import { marked } from "./words";

/** Longer texts are shown as plain text in a box. */
export const LONG = 200_000;
const PIECE = 20_000;
const FIRST = 20_000;
type Markdown = typeof import("./markdown");
const markdown = signal<Markdown | null>(null);
let asked = false;

function needMarkdown(): Markdown | null {
  if (!asked) {
    asked = true;
    void import("./markdown").then((loaded) => (markdown.value = loaded)).catch(() => (asked = false));
  }
  return markdown.value;
}

/** A text in which the words of a search are marked. */
export const Marked = ({ text, words }: { text: string; words: string }) =>
  <>{marked(text, words).map((piece, n) => (piece.hit ? <mark key={n}>{piece.text}</mark> : <span key={n}>{piece.text}</span>))}</>;

/** A command for a terminal, which can be copied. */
export const CommandLine = ({ command }: { command: string }) => <p class="command">
  <code>{command}</code>
  <button type="button" onClick={(event) => void copy(event.currentTarget, command)}>{t("common.copy")}</button>
</p>;

/** Split a text at line ends, so that the browser lays out only the visible pieces. */
function pieces(text: string): string[] {
  const found: string[] = [];
  for (let at = 0; at < text.length; ) {
    const line = text.indexOf("\n", at + PIECE);
    const end = line === -1 || line > at + 2 * PIECE ? Math.min(at + PIECE, text.length) : line + 1;
    found.push(text.slice(at, end));
    at = end;
  }
  return found;
}

export function LongText({ text, label }: { text: string; label: string }) {
  const [all, setAll] = useState(false);
  const short = all || text.length <= FIRST;
  const shown = short ? text : text.slice(0, FIRST);
  return <div class="long">
    <div class="box text" tabIndex={0} role="region" aria-label={label}>
      {pieces(shown).map((piece, n) => <div class="piece" key={n}>{piece}</div>)}
    </div>
    {!short && <button type="button" class="quiet" onClick={() => setAll(true)}>{t("text.show_all", { n: text.length })}</button>}
  </div>;
}

export function PlainText({ text }: { text: string }) {
  if (text.length > LONG) return <LongText text={text} label={t("text.long_message")} />;
  return <div class="text plain" dir="auto">{text}</div>;
}

/** Use a module that is loaded when it is first needed: at once if it is there, else when it has come. */
function lazily<Module>(load: () => Promise<Module>): (use: (module: Module) => void) => void {
  let loaded: Module | null = null;
  return (use) => {
    if (loaded !== null) return use(loaded);
    load().then((module) => use((loaded = module)), () => undefined); // the next block tries again
  };
}
const withCode = lazily(() => import("./highlight"));
const withMath = lazily(() => import("./math"));
const withFrames = lazily(() => import("./embed"));

const BlockView = memo(({ html, done, whole }: { html: string; done: boolean; whole: boolean }) => {
  const element = useRef<HTMLDivElement>(null);
  const watched = useRef(!done);
  useLayoutEffect(() => {
    const box = element.current;
    if (box === null) return;
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    morph(box, fresh.content);
    // Code that the person saw growing does not shrink under their eyes.
    if (whole) box.querySelectorAll(".unfold").forEach((button) => button.remove());
    else if (!watched.current) box.querySelectorAll(".code").forEach((code) => fold(code, true));
  }, [html]);
  useLayoutEffect(() => {
    const box = element.current;
    if (box === null) return;
    if (html.includes("<pre")) withCode(({ highlight }) => highlight(box, morph, !done));
    if (html.includes('class="math')) withMath(({ drawMath }) => drawMath(box));
    if (done && html.includes("language-mermaid")) withFrames(({ drawDiagrams }) => drawDiagrams(box));
    if (html.includes('class="picture own')) showOwnPictures(box);
  }, [html, done]);
  return <div class="block" dir="auto" ref={element} />;
});

const LATEST_MS = 250;
const SOONEST_MS = 40;
const calmMotion = typeof matchMedia === "function" ? matchMedia("(prefers-reduced-motion: reduce)") : null;

/** Where a text may be cut: not within a character. */
function borderAfter(text: string, at: number): number {
  let end = at;
  while (end < text.length && (/^[\udc00-\udfff\u200d\ufe0f\u0300-\u036f]/.test(text[end]!) || text[end - 1] === "\u200d")) end++;
  return end;
}

/** Release a text that arrives in lumps evenly, frame by frame, over about the time between two lumps. Rendering takes at most a fifth of the time. */
function usePaced(text: string, growing: boolean): { shown: string; took: (ms: number) => void } {
  const pace = useRef({ text, length: text.length, arrived: performance.now(), until: 0, last: 0, next: 0 }).current;
  const [, again] = useState(0);
  if (pace.text !== text) {
    const now = performance.now();
    if (!text.startsWith(pace.text.slice(0, pace.length))) pace.length = text.length; // another text
    pace.until = now + Math.min(LATEST_MS, Math.max(SOONEST_MS, now - pace.arrived));
    if (pace.length >= pace.text.length) pace.last = now;
    pace.arrived = now;
    pace.text = text;
  }
  if (!growing || document.hidden || calmMotion?.matches === true) pace.length = text.length;
  useLayoutEffect(() => {
    if (pace.length >= pace.text.length) return;
    const release = (length: number) => {
      pace.length = borderAfter(pace.text, length);
      again((n) => n + 1);
    };
    const step = () => {
      const now = performance.now();
      const left = pace.text.length - pace.length;
      const part = Math.min(1, (now - pace.last) / Math.max(1, pace.until - pace.last));
      const some = Math.floor(left * part);
      if (now < pace.next || some === 0) return void (frame = requestAnimationFrame(step));
      pace.last = now;
      release(pace.length + some);
    };
    let frame = requestAnimationFrame(step);
    // A window that is covered gets no frames.
    const timer = setTimeout(() => release(pace.text.length), Math.max(LATEST_MS, pace.next - performance.now()));
    return () => {
      cancelAnimationFrame(frame);
      clearTimeout(timer);
    };
  });
  return { shown: text.slice(0, pace.length), took: (ms) => void (pace.next = performance.now() + 4 * ms) };
}

/** Markdown. With `whole`, long code is not folded. */
export function Prose({ text, growing, whole = false }: { text: string; growing: boolean; whole?: boolean }) {
  const before = useRef<{ language: string; blocks: Block[] }>({ language: "", blocks: [] });
  const made = needMarkdown();
  const { shown, took } = usePaced(text, growing);
  if (text.length > LONG) return <LongText text={text} label={t("text.long_answer")} />;
  if (made === null) return <div class="text plain" dir="auto">{shown}</div>;
  const start = performance.now();
  const name = language.value; // the buttons of code are texts of the page
  const blocks = made.blocks(shown, before.current.language === name ? before.current.blocks : [], growing);
  before.current = { language: name, blocks };
  took(performance.now() - start);
  return <div class="text prose" onClick={clickInProse}>
    {blocks.map((block, n) => <BlockView key={`${name} ${block.start}`} html={block.html} done={!growing || n < blocks.length - 1} whole={whole} />)}
  </div>;
}

/** Copy a text to the clipboard. Returns false if the browser refuses. */
export async function copyText(text: string): Promise<boolean> {
  try {
    if (navigator.clipboard === undefined) copyOldWay(text);
    else await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false;
  }
}

/** Copy a text, and show the result on the button. */
async function copy(button: HTMLButtonElement, text: string): Promise<void> {
  const label = button.textContent;
  button.textContent = t((await copyText(text)) ? "common.copied" : "common.not_copied");
  setTimeout(() => (button.textContent = label), 1500);
}

/** The fallback for plain http except on localhost, where navigator.clipboard is missing. */
function copyOldWay(text: string): void {
  const area = document.createElement("textarea");
  area.value = text;
  document.body.append(area);
  area.select();
  const done = document.execCommand("copy");
  area.remove();
  if (!done) throw new Error("The browser refused.");
}

/** Fold a long block of code, or show all of it. */
function fold(code: Element, folded: boolean): void {
  const button = code.querySelector(".unfold");
  if (button === null) return;
  code.classList.toggle("folded", folded);
  button.setAttribute("aria-expanded", String(!folded));
  button.textContent = folded ? t("code.show_all", { n: markdown.value?.countLines(codeIn(code)) ?? 0 }) : t("code.show_less");
}

const codeIn = (box: Element): string => box.querySelector("pre > code")?.textContent ?? "";

const ENDINGS: Record<string, string> = {
  bash: "sh", c: "c", cpp: "cpp", "c++": "cpp", cs: "cs", css: "css", csv: "csv", diff: "diff", go: "go", html: "html", ini: "ini", java: "java", javascript: "js", js: "js", json: "json",
  jsx: "jsx", kotlin: "kt", lua: "lua", markdown: "md", md: "md", mermaid: "mmd", php: "php", py: "py", python: "py", r: "r", rb: "rb", rs: "rs", ruby: "rb", rust: "rs", sh: "sh",
  shell: "sh", sql: "sql", svg: "svg", swift: "swift", tex: "tex", toml: "toml", ts: "ts", tsx: "tsx", typescript: "ts", xml: "xml", yaml: "yaml", yml: "yaml", zsh: "sh",
};

/** Save a block of code as a file whose name says the language. */
function saveCode(box: Element): void {
  const language = box.querySelector("pre > code")?.classList[0]?.slice("language-".length).toLowerCase() ?? "";
  const name = language === "dockerfile" ? "Dockerfile" : language === "makefile" ? "Makefile" : `code.${Object.hasOwn(ENDINGS, language) ? ENDINGS[language] : "txt"}`;
  const address = URL.createObjectURL(new Blob([codeIn(box)], { type: "text/plain" }));
  Object.assign(document.createElement("a"), { href: address, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** The other end of a footnote, in the same answer. */
function followNote(link: HTMLAnchorElement): void {
  const [, from, label] = /^#(note|text)-(.*)$/.exec(link.getAttribute("href") ?? "") ?? [];
  const other = `a.note[href="#${from === "note" ? "text" : "note"}-${CSS.escape(label ?? "")}"]`;
  const found = link.closest(".prose")?.querySelector<HTMLElement>(other);
  found?.scrollIntoView({ block: "nearest" });
  found?.focus();
}

/** Handle clicks inside Markdown, whose buttons are plain HTML. */
function clickInProse(event: MouseEvent): void {
  const target = (event.target as Element).closest?.(".prose button, .prose a.note");
  if (target instanceof HTMLAnchorElement) {
    event.preventDefault();
    return followNote(target);
  }
  const box = target?.closest(".code");
  if (!(target instanceof HTMLButtonElement)) return;
  if (target.matches(".picture .show")) return withFrames(({ showPicture }) => showPicture(target.closest(".picture")!, target));
  if (box === null || box === undefined) return;
  switch (target.className) {
    case "copy":
      if (target.textContent === t("common.copy")) void copy(target, codeIn(box));
      return;
    case "wrap": return target.setAttribute("aria-pressed", String(box.classList.toggle("wrapped")));
    case "save": return saveCode(box);
    case "unfold":
      fold(box, !box.classList.contains("folded"));
      return target.scrollIntoView({ block: "nearest" });
    case "preview": return withFrames(({ togglePreview }) => togglePreview(box, target));
    case "diagram": return withFrames(({ toggleDiagram }) => toggleDiagram(box, target));
  }
}
