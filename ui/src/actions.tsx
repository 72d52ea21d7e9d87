// What a person can do with a message or an answer: copy, edit, retry, branch, read aloud, and switch between versions.
import { useLayoutEffect, useState } from "preact/hooks";
import { call, conversationPath, newKey } from "./api";
import { withoutPictures } from "./attach";
import { dialog } from "./dialogs";
import { useBusy, useGrowing } from "./hooks";
import { Icon, IconButton } from "./icon";
import { RetryWith } from "./models";
import { copyText } from "./prose";
import { attempt, enter, running, toast, type View } from "./state";
import { t } from "./text";
import type { Listed, Row } from "./types";
import { isWaiting } from "./words";

/** Only rows of stored events have numbers. A row that is still being written has no actions. */
const isStored = (row: Row): boolean => /^\d+$/.test(row.id);

/** Store a further version of a message: the same message again, or with another text. Returns true if it was stored. */
async function replace(view: View, seq: string, body: { text?: string; attachments?: { blob: string; name: string }[]; model?: string }): Promise<boolean> {
  await call("POST", conversationPath(view.id, `/messages/${seq}/replace`), body, { "Idempotency-Key": newKey() });
  return true;
}

/** Cancel a message that waits. The stream removes the row in every tab. */
const withdraw = (view: View, row: Row) => attempt(() => call("POST", conversationPath(view.id, `/messages/${row.id}/withdraw`)));

/** The message that an answer belongs to: the last message above the row. */
function messageAbove(view: View, row: Row): Row | undefined {
  const rows = view.rows.all;
  const at = rows.findIndex((candidate) => candidate.id === row.id);
  return rows.slice(0, at).findLast((candidate) => candidate.kind === "user" && candidate.author !== "system");
}

/** Answer a message again, with another model if one is given. */
export function retryRow(view: View, row: Row, model?: string): void {
  const message = row.kind === "user" ? row : messageAbove(view, row);
  if (message === undefined) toast(t("message.further_up"));
  else void attempt(() => replace(view, message.id, model === undefined ? {} : { model }));
}

/** Copy a conversation, up to an event if one is given, and open the copy. */
export const fork = (id: string, upto?: number) => attempt(async () => {
  enter(await call<Listed>("POST", conversationPath(id, "/fork"), upto === undefined ? {} : { upto }));
  toast(t("conversation.copied"));
});

function CopyButton({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const act = async () => {
    if (!(await copyText(text))) return toast(t("page.no_copying"), undefined, true);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return <IconButton icon={copied ? "done" : "copy"} name={t(copied ? "common.copied" : "common.copy")} act={() => void act()} />;
}

function readAloud(text: string): void {
  const { speechSynthesis } = window;
  if (speechSynthesis.speaking) speechSynthesis.cancel();
  else speechSynthesis.speak(new SpeechSynthesisUtterance(text));
}

/** The version of a message that is shown, and buttons for the versions before and after it. */
function Versions({ view, row }: { view: View; row: Row }) {
  const versions = row.versions ?? [];
  if (versions.length < 2) return null;
  const at = versions.indexOf(Number(row.id));
  const choose = (n: number) => void attempt(() => call("POST", conversationPath(view.id, `/messages/${versions[n]}/choose`)));
  return <span class="versions" role="group" aria-label={t("message.versions")}>
    <IconButton icon="back" name={t("message.previous")} disabled={at <= 0 || running.value} act={() => choose(at - 1)} />
    <span>{t("message.version_of", { n: at + 1, all: versions.length })}</span>
    <IconButton icon="forward" name={t("message.next")} disabled={at >= versions.length - 1 || running.value} act={() => choose(at + 1)} />
  </span>;
}

export function MessageActions({ view, row, edit }: { view: View; row: Row; edit: () => void }) {
  if (!isStored(row) || row.author === "system") return null;
  return <span class="buttons-row">
    <Versions view={view} row={row} />
    <CopyButton text={row.text ?? ""} />
    <IconButton icon="edit" name={t("common.edit")} disabled={running.value && !isWaiting(row)} act={edit} />
    {isWaiting(row) && <IconButton icon="close" name={t("message.cancel")} act={() => void withdraw(view, row)} />}
  </span>;
}

export function AnswerActions({ view, row }: { view: View; row: Row }) {
  const seen = () => attempt(async () => {
    const body = await call<unknown>("GET", conversationPath(view.id, `/seen/${row.id}`));
    dialog.value = { kind: "text", title: t("answer.seen"), text: JSON.stringify(body, withoutPictures, 2) };
  });
  return <>
    <CopyButton text={row.text ?? ""} />
    {isStored(row) && <>
      <IconButton icon="retry" name={t("common.retry")} disabled={running.value} act={() => retryRow(view, row)} />
      {!running.value && <RetryWith button={<Icon name="open" />} kind="quiet icon with" retry={(label) => retryRow(view, row, label)} />}
      <IconButton icon="branch" name={t("answer.branch")} act={() => void fork(view.id, Number(row.id))} />
      {"speechSynthesis" in window && <IconButton icon="read" name={t("answer.read_aloud")} act={() => readAloud(row.text ?? "")} />}
      <IconButton icon="seen" name={t("answer.seen")} act={() => void seen()} />
    </>}
  </>;
}

/** The text of a message, to be changed. The message stays as it is until the new version is stored. */
export function EditBox({ view, row, close }: { view: View; row: Row; close: () => void }) {
  const [text, setText] = useState(row.text ?? "");
  const [busy, run] = useBusy();
  const area = useGrowing(text, 0.5);
  useLayoutEffect(() => {
    area.current?.focus();
    area.current?.scrollIntoView({ block: "nearest" });
  }, []);
  const attachments = (row.parts ?? []).flatMap(({ blob, name }) => (blob === undefined ? [] : [{ blob, name: name ?? "" }]));
  const send = async (event: Event) => {
    event.preventDefault();
    if (busy || (text.trim() === "" && attachments.length === 0)) return;
    if (await run(() => replace(view, row.id, { text, attachments }))) leave();
  };
  const leave = () => {
    close();
    document.querySelector<HTMLTextAreaElement>(".composer textarea")?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") leave();
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) void send(event);
    else return;
    event.stopPropagation();
  };
  return <form class="edit" aria-label={t("message.edit")} onSubmit={(event) => void send(event)}>
    <textarea ref={area} aria-label={t("message.edited")} dir="auto" rows={1} value={text} onInput={(event) => setText(event.currentTarget.value)} onKeyDown={onKeyDown} />
    <p class="choices">
      <button type="button" onClick={leave}>{t("common.cancel")}</button>
      <button type="submit" class="main" disabled={busy || (running.value && !isWaiting(row))}>{t("composer.send")}</button>
    </p>
  </form>;
}
