// A button that opens a menu. Arrows move between the items, Escape and a click elsewhere close it.
import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";

interface PopupProps {
  /** The content of the button. */
  button: ComponentChildren;
  /** The name of the button, if its content is not enough. */
  name?: string;
  /** The class of the button. */
  kind?: string;
  /** The name of the menu. */
  menu: string;
  items: { label: ComponentChildren; key: string; kind?: string; current?: boolean; run: () => void }[];
  /** Shown below the items. */
  foot?: ComponentChildren;
}

export function Popup({ button, name, kind, menu, items, foot }: PopupProps) {
  const [open, setOpen] = useState(false);
  const root = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (!open) return;
    const elsewhere = (event: Event) => {
      if (!root.current?.contains(event.target as Node)) setOpen(false);
    };
    document.addEventListener("pointerdown", elsewhere);
    root.current?.querySelector<HTMLElement>("[role=menuitem]")?.focus();
    return () => document.removeEventListener("pointerdown", elsewhere);
  }, [open]);
  const close = () => {
    setOpen(false);
    root.current?.querySelector("button")?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (!open) return;
    const all = [...(root.current?.querySelectorAll<HTMLElement>("[role=menuitem]") ?? [])];
    const at = all.indexOf(document.activeElement as HTMLElement);
    const to = { ArrowDown: at + 1, ArrowUp: at - 1 + all.length, Home: 0, End: all.length - 1 }[event.key];
    if (event.key === "Escape") close();
    else if (event.key === "Tab") setOpen(false);
    else if (to !== undefined) all[to % all.length]?.focus();
    if (to !== undefined || event.key === "Escape") {
      event.preventDefault();
      event.stopPropagation();
    }
  };
  return (
    <div class="menu" ref={root} onKeyDown={onKeyDown}>
      <button type="button" class={kind} aria-label={name} aria-haspopup="menu" aria-expanded={open} onClick={() => setOpen(!open)}>
        {button}
      </button>
      {open && (
        <div class="sheet">
          <div role="menu" aria-label={menu}>
            {items.map((item) => (
              <button
                key={item.key}
                type="button"
                role="menuitem"
                tabIndex={-1}
                class={item.kind}
                aria-current={item.current}
                onClick={() => {
                  close();
                  item.run();
                }}
              >
                {item.label}
              </button>
            ))}
          </div>
          {foot}
        </div>
      )}
    </div>
  );
}
