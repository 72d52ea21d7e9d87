// The rows of the transcript. Only those near the screen are in the document: the others are gaps of the same height.
import { signal } from "@preact/signals";
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useMemo, useReducer, useRef } from "preact/hooks";
import type { Outgoing } from "./outbox";
import { printing } from "./printing";
import { RowView, UnsentRow, WorkRow } from "./row";
import { type Item, itemsOf } from "./rows";
import type { View } from "./state";
import { dayWords } from "./words";

/** How far from the visible part rows are rendered. */
const MARGIN_PX = 500;
/** A conversation with so few items is rendered whole: the browser's own search finds everything in it. */
const WHOLE_MAX = 40;
const OPEN_MAX = 100;

/** The row to which the page scrolls: it is rendered although it is far away. */
export const aim = signal<string | null>(null);
const LINE_CHARS = 80;

/** The likely height of an item that was never rendered. */
function estimate(item: Item, view: View): number {
  if (item.day !== undefined || item.work !== undefined) return 44;
  const row = view.rows.byId.get(item.id);
  if (row?.kind !== "user" && row?.kind !== "assistant") return 40;
  return 90 + 26 * Math.min(200, Math.ceil((row.text ?? "").length / LINE_CHARS));
}

const keyOf = (element: Element | null | undefined): string | undefined =>
  element instanceof HTMLElement ? (element.dataset["row"] ?? element.dataset["key"]) : undefined;

/** The element of the list that contains a node. */
function memberOf(list: Element, node: Node | null): Element | null {
  let found = node;
  while (found !== null && found.parentNode !== list) found = found.parentNode;
  return found instanceof Element ? found : null;
}

interface RowListProps {
  view: View;
  box: RefObject<HTMLDivElement | null>;
  follows: RefObject<boolean>; // whether the page stays at the end
  hit: string | null;
  unsent: Outgoing[];
}

export function RowList({ view, box, follows, hit, unsent }: RowListProps) {
  const list = useRef<HTMLOListElement>(null);
  const heights = useRef(new Map<string, number>()).current;
  /** The first and the last rendered key. The keys stay when rows come in above. */
  const range = useRef<{ first: string; last: string } | null>(null);
  const [, render] = useReducer((n: number) => n + 1, 0);
  const [order, folds, attempts] = [view.order.value, view.folds.value, view.attempts.value];
  const items = useMemo(() => itemsOf(view.rows.all, folds, attempts), [view, order, folds, attempts]);
  const places = useMemo(() => new Map(items.map((item, n) => [item.key, n])), [items]);
  const heightOf = (item: Item) => heights.get(item.key) ?? estimate(item, view);

  /** The items near the screen, as [from, to]. */
  const near = (): [number, number] => {
    const scroller = box.current;
    const room = scroller?.clientHeight ?? innerHeight;
    let from = items.length;
    if (scroller === null || list.current === null || follows.current) {
      for (let sum = 0; from > 0 && sum < room + MARGIN_PX; from--) sum += heightOf(items[from - 1]!);
      return [from, items.length];
    }
    const top = scroller.getBoundingClientRect().top - list.current.getBoundingClientRect().top - MARGIN_PX;
    let at = 0;
    for (from = 0; from < items.length && at + heightOf(items[from]!) < top; from++) at += heightOf(items[from]!);
    let to = from;
    for (; to < items.length && at < top + room + 2 * MARGIN_PX; to++) at += heightOf(items[to]!);
    return [from, to];
  };

  const [found, end] = [places.get(range.current?.first ?? ""), places.get(range.current?.last ?? "")];
  let [from, to] = found === undefined || end === undefined ? near() : [found, end + 1];
  if (follows.current) {
    const [start] = near();
    from = to >= start ? Math.min(from, start) : start; // the page may have been elsewhere until now
    to = items.length;
  }
  if (printing.value || items.length <= WHOLE_MAX) [from, to] = [0, items.length];

  // Rows that hold something of the person: the focus, the text of an edited message, an answer to a question.
  const pins = new Set([aim.value, view.editing.value]);
  if (list.current?.contains(document.activeElement)) pins.add(keyOf(memberOf(list.current, document.activeElement)) ?? null);
  if (view.asks.value) for (const id of order.slice(-OPEN_MAX)) if (view.rows.byId.get(id)?.state === "asks") pins.add(id);

  // What the person looks at stays where it is: note the position of the first visible row before the document changes.
  const anchor = useRef<{ element: Element; top: number } | null>(null);
  const screen = follows.current ? undefined : box.current?.getBoundingClientRect();
  const isInSight = (child: Element) => {
    const { top, bottom } = child.getBoundingClientRect();
    return keyOf(child) !== undefined && bottom > screen!.top && top < screen!.bottom;
  };
  const first = screen === undefined ? undefined : [...(list.current?.children ?? [])].find(isInSight);
  anchor.current = first === undefined ? null : { element: first, top: first.getBoundingClientRect().top };

  const look = () => {
    if (list.current === null || box.current === null || printing.value) return;
    for (const child of list.current.children) {
      const key = keyOf(child);
      if (key !== undefined) heights.set(key, child.getBoundingClientRect().height);
    }
    if (items.length <= WHOLE_MAX) return;
    let [start, stop] = near();
    const selection = getSelection();
    if (selection !== null && !selection.isCollapsed && list.current.contains(selection.anchorNode)) {
      // Rows that leave the document would leave the selection too.
      [start, stop] = [Math.min(start, places.get(range.current?.first ?? "") ?? start), Math.max(stop, (places.get(range.current?.last ?? "") ?? stop) + 1)];
    }
    const next = { first: items[start]?.key ?? "", last: items[Math.min(stop, items.length) - 1]?.key ?? "" };
    if (next.first === range.current?.first && next.last === range.current.last) return;
    range.current = next;
    render(0);
  };
  const looks = useRef(look);
  looks.current = look;

  useLayoutEffect(() => {
    const scroller = box.current;
    if (scroller !== null && anchor.current?.element.isConnected && !follows.current) {
      const moved = anchor.current.element.getBoundingClientRect().top - anchor.current.top;
      if (Math.abs(moved) >= 1) scroller.scrollTop += moved;
    }
    look();
  });
  useEffect(() => {
    const scroller = box.current;
    const see = () => looks.current();
    const observer = new ResizeObserver(see);
    if (list.current !== null) observer.observe(list.current);
    if (scroller !== null) observer.observe(scroller);
    scroller?.addEventListener("scroll", see, { passive: true });
    return () => {
      observer.disconnect();
      scroller?.removeEventListener("scroll", see);
    };
  }, [view]);

  const shown = [];
  let gap = 0;
  const endGap = (n: number) => {
    if (gap > 0) shown.push(<li key={`gap:${n === items.length ? "end" : items[n]!.key}`} class="gap" aria-hidden="true" style={{ height: `${gap}px` }} />);
    gap = 0;
  };
  for (const [n, item] of items.entries()) {
    if ((n < from || n >= to) && !pins.has(item.key)) {
      gap += heightOf(item);
      continue;
    }
    endGap(n);
    if (item.day !== undefined) shown.push(<Day key={item.key} name={item.key} time={item.day} />);
    else if (item.work !== undefined) shown.push(<WorkRow key={item.key} view={view} ids={item.work} />);
    else shown.push(<RowView key={item.key} view={view} id={item.id} hit={hit === item.id} />);
  }
  endGap(items.length);
  return <ol class="rows" ref={list}>{shown}{unsent.map((message) => <UnsentRow key={message.key} message={message} />)}</ol>;
}

const Day = ({ name, time }: { name: string; time: Date }) =>
  <li class="day" data-key={name}><time dateTime={name.slice("day:".length)}>{dayWords(time)}</time></li>;
