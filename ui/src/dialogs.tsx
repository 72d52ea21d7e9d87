// Dialogs: rename, delete, and long texts. One at a time, in the browser's dialog element.
import { effect, signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { prevented } from "./form";
import { LongText } from "./prose";
import { route } from "./state";
import { t } from "./text";

type Dialog =
  | { kind: "text" | "keys"; title: string; text: string }
  | { kind: "confirm"; title: string; text: string; label: string; run: () => void }
  | { kind: "ask"; title: string; label: string; value: string; run: (value: string) => void };

export const dialog = signal<Dialog | null>(null);
/** Ask the person before an action. `label` is the name of the button that runs it. */
export const confirm = (title: string, text: string, label: string, run: () => unknown): void => {
  dialog.value = { kind: "confirm", title, text, label, run: () => void run() };
};
const close = (): void => void (dialog.value = null);
effect(() => {
  if (route.value) close(); // a dialog about one conversation closes when another one opens
});

export function Dialogs() {
  const open = dialog.value;
  const element = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => { if (open !== null && element.current?.open === false) element.current.showModal(); }, [open]);
  if (open === null) return null;
  return <dialog ref={element} class={open.kind} aria-label={open.title} onClose={close}>
    <h2>{open.title}</h2>
    {open.kind === "ask" ? <Ask open={open} /> : <>
      {open.kind === "text" ? <LongText text={open.text} label={open.title} /> : open.kind === "keys" ? <Keys list={open.text} /> : <p>{open.text}</p>}
      <Choices>
        {open.kind === "confirm" && <button type="button" class="danger"
          onClick={() => {
            close();
            open.run();
          }}
        >
          {open.label}
        </button>}
      </Choices>
    </>}
  </dialog>;
}

/** Lines of keys and what they do, with spaces between. */
const Keys = ({ list }: { list: string }) => <dl class="pairs">
  {list.split("\n").map((line) => line.split(/\s{2,}/)).map(([keys, what]) => [<dt><kbd>{keys}</kbd></dt>, <dd>{what}</dd>])}
</dl>;

function Choices({ children }: { children?: ComponentChildren }) {
  return <div class="choices end">
    <button type="button" onClick={close}>{t(/text|keys/.test(dialog.value?.kind ?? "") ? "common.close" : "common.cancel")}</button>
    {children}
  </div>;
}

function Ask({ open }: { open: Dialog & { kind: "ask" } }) {
  const [value, setValue] = useState(open.value);
  const done = () => {
    close();
    open.run(value.trim());
  };
  return <form onSubmit={prevented(done)}>
    <label>{open.label}<input value={value} onInput={(event) => setValue(event.currentTarget.value)} autofocus maxLength={200} /></label>
    <Choices><button type="submit" class="main">{t("common.save")}</button></Choices>
  </form>;
}
