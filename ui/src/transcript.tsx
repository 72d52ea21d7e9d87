// The transcript: follows its end while the person is there, loads older rows without jumping, and scrolls to a search hit.
import { signal, useSignalEffect } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef } from "preact/hooks";
import { call, conversationPath } from "./api";
import { FindBar } from "./find";
import { Outline } from "./outline";
import { outbox, type Outgoing } from "./outbox";
import { Dots } from "./row";
import { aim, RowList } from "./rowlist";
import { rowOfHit } from "./rows";
import { connection, current, finding, hitWords, outlined, route, running, toast, type View } from "./state";
import { t } from "./text";
import { TourCard } from "./tour";
import { bytes, marked } from "./words";

const NEAR_PX = 60;
const READ_MS = 300;
/** The text for screen readers: each answer, when it is complete. */
const spoken = signal("");
const atEnd = signal(true);
function isNearEnd(box: HTMLElement): boolean { return box.scrollHeight - box.scrollTop - box.clientHeight < NEAR_PX; }
const isVisible = signal(document.visibilityState === "visible");
document.addEventListener("visibilitychange", () => (isVisible.value = document.visibilityState === "visible"));

const sizesOf = (box: HTMLElement | null) => ({ top: box?.scrollTop ?? 0, height: box?.scrollHeight ?? 0, room: box?.clientHeight ?? 0 });

/** Messages of this conversation that are not in its rows yet. */
export function unsentOf(conversation: string | null, view: View | null): Outgoing[] {
  const order = view?.order.value ?? [];
  const taken = new Set<string>(); // a row matches one message, even if two have the same text
  return outbox.value.filter((message) => {
    if (message.conversation !== conversation) return false;
    if (view === null) return true;
    if (message.seq !== undefined) return !view.has(message);
    if (message.tries > 0 && message.refused !== undefined) return true;
    // The stream may be faster than the answer to the request.
    const row = order.find((id) => {
      const { kind, text } = view.row(id).value;
      return kind === "user" && Number(id) > message.after && (text ?? "") === message.text && !taken.has(id);
    });
    if (row !== undefined) taken.add(row);
    return row === undefined;
  });
}

async function showHit(box: HTMLElement, view: View, hit: { seq: number; role: string }, letGo: () => void): Promise<string | null> {
  await view.reach(hit.seq);
  const id = rowOfHit(view.rows, hit.seq, hit.role);
  if (id === null) return null;
  view.reveal(id);
  const work = [...view.folds.value].find(([, members]) => members.includes(id));
  aim.value = work === undefined ? id : `work:${work[0]}`;
  await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  const element = box.querySelector(`[data-row="${CSS.escape(id)}"]`);
  letGo();
  element?.scrollIntoView({ block: "center" });
  // The rows around it have their final heights only now.
  requestAnimationFrame(() => {
    if (element !== null) (markWords(element) ?? element).scrollIntoView({ block: "center" });
    aim.value = null;
  });
  return id;
}

const MARKS_MAX = 100;

/** Mark the searched words in a row. Returns the element with the first of them. */
function markWords(row: Element): Element | null {
  const ranges: Range[] = [];
  const texts = document.createTreeWalker(row, NodeFilter.SHOW_TEXT);
  for (let node = texts.nextNode(); node !== null && ranges.length < MARKS_MAX; node = texts.nextNode()) {
    let at = 0;
    for (const { text, hit } of marked(node.nodeValue ?? "", hitWords.value)) {
      if (hit) {
        const range = document.createRange();
        range.setStart(node, at);
        range.setEnd(node, at + text.length);
        ranges.push(range);
      }
      at += text.length;
    }
  }
  if ("highlights" in CSS) CSS.highlights.set("hit", new Highlight(...ranges));
  return ranges[0]?.startContainer.parentElement ?? null;
}

const hitRow = signal<string | null>(null);

export function Transcript({ view }: { view: View }) {
  const box = useRef<HTMLDivElement>(null);
  const inner = useRef<HTMLDivElement>(null);
  const follows = useRef(true);
  const seen = useRef(sizesOf(null));
  const hit = route.value.hit;

  useLayoutEffect(() => {
    const [scroller, content] = [box.current, inner.current];
    if (scroller === null || content === null) return;
    follows.current = true;
    atEnd.value = true;
    const settle = () => {
      if (follows.current) scroller.scrollTop = scroller.scrollHeight;
      else atEnd.value = isNearEnd(scroller);
      seen.current = sizesOf(scroller);
    };
    const observer = new ResizeObserver(settle);
    observer.observe(content);
    observer.observe(scroller);
    // An element that shrinks and grows within a frame also moves the page: correct the position before the scroll event arrives.
    const changed = new MutationObserver(settle);
    changed.observe(scroller, { childList: true, characterData: true, attributes: true, subtree: true });
    return () => {
      observer.disconnect();
      changed.disconnect();
    };
  }, [view]);

  useEffect(() => {
    hitRow.value = null;
    if (hit === null || !view.ready.value || box.current === null) return;
    const letGo = () => void (follows.current = false);
    letGo(); // and again when the hit is loaded, because rows that arrive above move the page too
    void showHit(box.current, view, hit, letGo).then((id) => {
      if (id === null) toast(t("transcript.further_up"));
      hitRow.value = id;
    });
  }, [view, hit, view.ready.value]); // the same hit chosen again is a new object, so the effect runs again

  // After sending, scroll to where the answer will appear.
  const unsent = unsentOf(view.id, view);
  useLayoutEffect(() => {
    if (unsent.length > 0) follows.current = true;
    if (follows.current && box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  }, [unsent.length]);

  useAnnouncement(view);
  useReadMark(view);

  /** Load the page above when the top is near. The rows of a page may be folded into few lines, so look again after each page. */
  const loadAbove = () => {
    if (box.current === null || box.current.scrollTop >= 600 || !view.more.value || !view.ready.value) return;
    void view.older().then((came) => came && requestAnimationFrame(loadAbove));
  };
  const onScroll = () => {
    const scroller = box.current;
    if (scroller === null) return;
    const near = isNearEnd(scroller);
    const [before, now] = [seen.current, sizesOf(scroller)];
    // If nothing changed its size, only the person can scroll up, even by one pixel: stop following the end.
    // Content that shrinks and grows moves the page too. That is not the person, even if the final height is the same.
    const same = now.height === before.height && now.room === before.room;
    if (now.top >= before.top) follows.current ||= near;
    else if (same) follows.current = false;
    else if (follows.current) scroller.scrollTop = scroller.scrollHeight;
    seen.current = sizesOf(scroller);
    atEnd.value = follows.current || near;
    loadAbove();
  };
  const jump = () => {
    follows.current = true;
    if (box.current !== null) box.current.scrollTop = box.current.scrollHeight;
  };
  const waiting = running.value && view.lastKind.value === "user";
  return <div class="stage">
    {finding.value && <FindBar view={view} />}
    {outlined.value && <Outline view={view} />}
    <div class="transcript" ref={box} onScroll={onScroll} tabIndex={0} role="region" aria-label={t("transcript.title")}>
      <div class="column" ref={inner}>
        {view.more.value &&
          <p class="status above"><button type="button" class="quiet" onClick={() => void view.older()}>{t("transcript.earlier")}</button></p>}
        <RowList view={view} box={box} follows={follows} hit={hitRow.value} unsent={unsent} />
        {waiting && <Dots since={view.last((row) => row.kind === "user")?.at ?? 0} />}
        {view.heldBytes.value > 0 && <p class="status" role="status">{t("transcript.held", { size: bytes(view.heldBytes.value) })}</p>}
        <TourCard view={view} />
      </div>
    </div>
    {!atEnd.value && <button type="button" class="jump" onClick={jump}>{t("transcript.jump")}</button>}
    <p class="hidden" aria-live="polite">{spoken.value}</p>
  </div>;
}

/** Tell the server how far the person has read: when the end of the conversation is on the screen and nothing more is being written. */
function useReadMark(view: View): void {
  const timer = useRef<ReturnType<typeof setTimeout> | undefined>(undefined);
  const sent = useRef(0);
  useSignalEffect(() => {
    const entry = current.value?.id === view.id ? current.value : undefined;
    const due = entry !== undefined && connection.value === "live" && !running.value && isVisible.value && atEnd.value && view.ready.value && view.at.value > Math.max(sent.current, entry.read);
    if (!due) {
      clearTimeout(timer.current);
      timer.current = undefined;
      return;
    }
    timer.current ??= setTimeout(() => {
      timer.current = undefined;
      const seq = view.at.peek();
      sent.current = seq;
      call("POST", conversationPath(view.id, "/read"), { seq }).catch(() => (sent.current = 0)); // tried again with the next change
    }, READ_MS);
  });
  useEffect(() => () => clearTimeout(timer.current), []);
}

function useAnnouncement(view: View): void {
  const grew = useRef<string | null>(null);
  const [streaming, answer] = [view.streaming.value, view.answer.value];
  useEffect(() => {
    if (streaming !== null) grew.current = streaming;
    else if (answer !== null && grew.current === answer) {
      grew.current = null;
      spoken.value = t("transcript.spoken", { text: (view.row(answer).peek().text ?? "").slice(0, 600) });
    }
  }, [streaming, answer]);
}
