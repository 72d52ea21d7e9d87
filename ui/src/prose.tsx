// Texts: growing Markdown, plain text, and texts that are too long for either.
import { signal } from "@preact/signals";
import { memo } from "./memo";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import type { Block } from "./markdown";

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
  return (
    <div class="long">
      <div class="box text" tabIndex={0} role="region" aria-label={label}>
        {pieces(shown).map((piece, n) => (
          <div class="piece" key={n}>
            {piece}
          </div>
        ))}
      </div>
      {!short && (
        <button type="button" class="quiet" onClick={() => setAll(true)}>
          Show all ({text.length.toLocaleString()} characters)
        </button>
      )}
    </div>
  );
}

export function PlainText({ text }: { text: string }) {
  if (text.length > LONG) return <LongText text={text} label="Long message" />;
  return (
    <div class="text plain" dir="auto">
      {text}
    </div>
  );
}

const BlockView = memo(({ html, done }: { html: string; done: boolean }) => {
  const element = useRef<HTMLDivElement>(null);
  const hasCode = html.includes("<pre");
  useLayoutEffect(() => {
    const box = element.current;
    if (box === null) return;
    // A growing code block keeps its element and scroll position; only its text is replaced.
    const fresh = document.createElement("template");
    fresh.innerHTML = html;
    const [before, after] = [box.querySelector("pre > code"), fresh.content.querySelector("pre > code")];
    const grows = before !== null && after !== null && fresh.content.firstElementChild?.className === "code";
    if (grows && box.firstElementChild?.className === "code" && before.className === after.className)
      before.textContent = after.textContent;
    else box.replaceChildren(fresh.content);
  }, [html]);
  useEffect(() => {
    if (!done) return;
    if (hasCode) void import("./highlight").then(({ highlight }) => element.current && highlight(element.current));
    if (html.includes('class="math')) void import("./math").then(({ drawMath }) => element.current && drawMath(element.current));
  }, [done, html]);
  return <div class="block" dir="auto" ref={element} />;
});

/** Throttle the rendering of a growing text, so that it takes at most a fifth of the time. */
function useCalm(text: string, growing: boolean): { calm: string; took: (ms: number) => void } {
  const last = useRef({ text, next: 0 });
  const [, again] = useState(0);
  const wait = last.current.next - performance.now();
  const calm = growing && wait > 0 ? last.current.text : text;
  useEffect(() => {
    if (calm === text) return;
    const timer = setTimeout(() => again((n) => n + 1), wait);
    return () => clearTimeout(timer);
  }, [calm === text]);
  const took = (ms: number) => {
    if (calm === text) last.current = { text, next: performance.now() + 4 * ms };
  };
  return { calm, took };
}

export function Prose({ text, growing }: { text: string; growing: boolean }) {
  const before = useRef<Block[]>([]);
  const made = needMarkdown();
  const { calm, took } = useCalm(text, growing);
  if (text.length > LONG) return <LongText text={text} label="Long answer" />;
  if (made === null)
    return (
      <div class="text plain" dir="auto">
        {text}
      </div>
    );
  const start = performance.now();
  const blocks = made.blocks(calm, before.current, growing);
  before.current = blocks;
  took(performance.now() - start);
  return (
    <div class="text prose">
      {blocks.map((block, n) => (
        <BlockView key={block.start} html={block.html} done={!growing || n < blocks.length - 1} />
      ))}
    </div>
  );
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
export async function copy(button: HTMLButtonElement, text: string): Promise<void> {
  const label = button.textContent;
  button.textContent = (await copyText(text)) ? "Copied" : "Not copied";
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

/** Handle clicks on the copy buttons inside Markdown, which are plain HTML. */
export function copyFromCode(event: MouseEvent): void {
  const button = (event.target as Element).closest?.("button.copy");
  if (!(button instanceof HTMLButtonElement) || button.textContent !== "Copy") return;
  const code = button.closest(".code")?.querySelector("pre")?.textContent ?? "";
  void copy(button, code);
}
