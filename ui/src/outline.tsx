// The outline of a long conversation: the first line of each message of the person. A click goes to the message.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { useModal } from "./hooks";
import { IconButton } from "./icon";
import { go, hitWords, outlined, pathOf, type View } from "./state";
import { t } from "./text";
import { shortTime, visible } from "./words";

const PAGE = 200;
const LINE_CHARS = 160;

export function Outline({ view }: { view: View }) {
  const element = useModal();
  const list = useRef<HTMLOListElement>(null);
  const [count, setCount] = useState(PAGE);
  const [busy, setBusy] = useState(false);
  void view.order.value;
  const all = view.rows.all.filter((row) => row.kind === "user" && row.author !== "system" && /^\d+$/.test(row.id) && (row.state ?? "") === "");
  useLayoutEffect(() => {
    if (list.current !== null) list.current.scrollTop = list.current.scrollHeight;
    list.current?.querySelector<HTMLElement>("li:last-child button")?.focus();
  }, []);
  const close = () => (outlined.value = false);
  const jump = (id: string) => {
    close();
    hitWords.value = "";
    go(`${pathOf(view.id)}#user-${id}`, "replace");
  };
  const earlier = async () => {
    setBusy(true);
    if (all.length <= count) await view.older(PAGE);
    setCount(count + PAGE);
    setBusy(false);
  };
  return (
    <dialog ref={element} class="outline" aria-label={t("outline.title")} onClose={close} onClick={(event) => event.target === element.current && close()}>
      <header><h2>{t("outline.title")}</h2><IconButton icon="close" name={t("common.close")} act={close} /></header>
      <ol ref={list}>
        {(view.more.value || all.length > count) &&
          <li key="earlier"><button type="button" class="quiet" disabled={busy} onClick={() => void earlier()}>{t("transcript.earlier")}</button></li>}
        {all.slice(-count).map((row) => <li key={row.id}>
          <button type="button" onClick={() => jump(row.id)}>
            <span dir="auto">{visible((row.text ?? "").trim().split("\n")[0]!).slice(0, LINE_CHARS) || t("outline.files")}</span>
            <small>{shortTime(new Date(row.at / 1000))}</small>
          </button>
        </li>)}
      </ol>
    </dialog>
  );
}
