// A button that opens a menu. Arrows move between the items, Escape and a click elsewhere close it. The menu is in the top layer of the
// browser, so that no box that scrolls cuts it off.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { Icon } from "./icon";
import { t } from "./text";

export interface PopupItem {
  label: ComponentChildren;
  key: string;
  kind?: string;
  current?: boolean;
  words?: string; // the words that the filter box looks for
  run: () => void;
  more?: PopupItem[]; // a second page of the menu, which the item opens instead
}

interface PopupProps {
  button: ComponentChildren; // the content of the button
  name?: string; // the name of the button, if its content is not enough
  kind?: string; // the class of the button
  menu: string; // the name of the menu
  items: PopupItem[] | (() => PopupItem[]); // The items; a function makes them when the menu opens.
  filter?: string | undefined; // The name of a filter box above the items. It hides items whose `words` do not match.
  foot?: ComponentChildren; // shown below the items
}

/** The label of an item that can be the chosen one. */
export const Ticked = ({ on, children }: { on: boolean; children: ComponentChildren }) =>
  <><span class="tick">{on && <Icon name="done" />}</span><span>{children}</span></>;

const GAP_PX = 6;
const HEIGHT_MAX_PX = 512;

/** Put the menu at its button: below, or above if there is more room, and within the window. */
function place(root: HTMLElement, sheet: HTMLElement): void {
  const at = root.firstElementChild!.getBoundingClientRect();
  sheet.style.maxHeight = "none";
  const [below, above] = [innerHeight - at.bottom - 2 * GAP_PX, at.top - 2 * GAP_PX];
  const up = sheet.offsetHeight > below && above > below;
  const height = Math.min(sheet.offsetHeight, up ? above : below, HEIGHT_MAX_PX);
  const start = at.left + at.right > innerWidth ? at.right - sheet.offsetWidth : at.left;
  sheet.style.maxHeight = `${height}px`;
  sheet.style.top = `${up ? at.top - GAP_PX - height : at.bottom + GAP_PX}px`;
  sheet.style.left = `${Math.max(GAP_PX, Math.min(start, innerWidth - sheet.offsetWidth - GAP_PX))}px`;
}

export function Popup({ button, name, kind, menu, items, filter, foot }: PopupProps) {
  const [query, setQuery] = useState("");
  const [open, setOpen] = useState(false);
  const [page, setPage] = useState<PopupItem | null>(null);
  const root = useRef<HTMLDivElement>(null);
  const sheet = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    if (!open || root.current === null || sheet.current === null) return;
    const [around, shown] = [root.current, sheet.current];
    const put = () => place(around, shown);
    const scrolled = (event: Event) => event.target !== shown && put();
    const elsewhere = (event: Event) => { if (!around.contains(event.target as Node)) setOpen(false); };
    shown.showPopover();
    put();
    const grown = new ResizeObserver(put); // a line that loads below the items
    for (const child of shown.children) grown.observe(child);
    document.addEventListener("pointerdown", elsewhere);
    setQuery("");
    window.addEventListener("resize", put);
    window.addEventListener("scroll", scrolled, { capture: true, passive: true });
    return () => {
      grown.disconnect();
      document.removeEventListener("pointerdown", elsewhere);
      window.removeEventListener("resize", put);
      window.removeEventListener("scroll", scrolled, { capture: true });
    };
  }, [open]);
  useEffect(() => { if (open) root.current?.querySelector<HTMLElement>("input, [role=menuitem]")?.focus(); }, [open, page]);
  const turn = (next: boolean) => {
    setPage(null);
    setOpen(next);
  };
  const close = () => {
    turn(false);
    root.current?.querySelector("button")?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (!open) return;
    const all = [...(root.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
    const at = all.indexOf(document.activeElement as HTMLElement);
    const typing = at < 0 && ["Home", "End", "ArrowUp"].includes(event.key);
    const to = typing ? undefined : { ArrowDown: at + 1, ArrowUp: at - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "Escape") close();
    else if (event.key === "Tab") turn(false);
    else if (to !== undefined) all[to % all.length]?.focus();
    if (to !== undefined || event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
    }
  };
  const choose = (item: PopupItem) => {
    if (item.more !== undefined) return setPage(item);
    close();
    item.run();
  };
  const back: PopupItem = { key: "back", kind: "back", label: <><Icon name="back" />{page?.label}</>, run: () => undefined };
  const all = !open ? [] : page !== null ? page.more! : typeof items === "function" ? items() : items;
  const shown = all.filter(({ words }) => words === undefined || words.toLowerCase().includes(query.trim().toLowerCase()));
  return <div class="menu" ref={root} onKeyDown={onKeyDown}>
    <button type="button" class={kind} aria-label={name} aria-haspopup="menu" aria-expanded={open} onClick={() => turn(!open)}>{button}</button>
    {open && <div class="sheet" ref={sheet} popover="manual">
      {filter !== undefined &&
        <input type="search" class="filter" aria-label={filter} placeholder={filter} value={query} onInput={(event) => setQuery(event.currentTarget.value)} autocomplete="off" />}
      <div role="menu" aria-label={menu}>
        {[...(page === null ? [] : [back]), ...shown].map((item) =>
          <button key={item.key} type="button" role="menuitem" tabIndex={-1} class={item.kind} aria-current={item.current}
            aria-haspopup={item.more && "menu"} aria-label={item === back ? t("common.back") : undefined}
            onClick={() => (item === back ? setPage(null) : choose(item))}>
            {item.label}
          </button>)}
      </div>
      {page === null && foot}
    </div>}
  </div>;
}
