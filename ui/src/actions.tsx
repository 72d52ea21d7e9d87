// What a person can do with a message or an answer: copy, edit, retry, branch, read aloud, and switch between versions.
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, conversationPath, newKey } from "./api";
import { withoutPictures } from "./attach";
import { dialog } from "./dialogs";
import { IconButton } from "./icon";
import { copyText } from "./prose";
import { attempt, go, pathOf, putListed, running, toast, type View } from "./state";
import type { Listed, Row } from "./types";

/** Only rows of stored events have numbers. A row that is still being written has no actions. */
const isStored = (row: Row): boolean => /^\d+$/.test(row.id);

/** Store a further version of a message: the same message again, or with another text. Returns true if it was stored. */
function replace(view: View, seq: string, body: { text?: string; attachments?: { blob: string; name: string }[] }): Promise<boolean | undefined> {
  return attempt(async () => {
    await call("POST", conversationPath(view.id, `/messages/${seq}/replace`), body, { "Idempotency-Key": newKey() });
    return true;
  });
}

/** The message that an answer belongs to: the last message above the row. */
function messageAbove(view: View, row: Row): Row | undefined {
  const rows = view.rows.all;
  const at = rows.findIndex((candidate) => candidate.id === row.id);
  return rows.slice(0, at).findLast((candidate) => candidate.kind === "user" && candidate.author !== "system");
}

export function retryRow(view: View, row: Row): void {
  const message = row.kind === "user" ? row : messageAbove(view, row);
  if (message === undefined) toast("The message is further up. Scroll up to load it.");
  else void replace(view, message.id, {});
}

const branch = (view: View, row: Row) =>
  attempt(async () => {
    const copied = await call<Listed>("POST", conversationPath(view.id, "/fork"), { upto: Number(row.id) });
    putListed(copied);
    go(pathOf(copied.id));
    toast("Copied to a new conversation.");
  });

function CopyButton({ text }: { text: string }) {
  const [copied, setCopied] = useState(false);
  const act = async () => {
    if (!(await copyText(text))) return toast("The browser does not allow copying here.", undefined, true);
    setCopied(true);
    setTimeout(() => setCopied(false), 1500);
  };
  return <IconButton icon={copied ? "done" : "copy"} name={copied ? "Copied" : "Copy"} act={() => void act()} />;
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
  return (
    <span class="versions" role="group" aria-label="Versions of this message">
      <IconButton icon="back" name="Previous version" disabled={at <= 0 || running.value} act={() => choose(at - 1)} />
      <span>
        {at + 1}/{versions.length}
      </span>
      <IconButton icon="forward" name="Next version" disabled={at >= versions.length - 1 || running.value} act={() => choose(at + 1)} />
    </span>
  );
}

export function MessageActions({ view, row, edit }: { view: View; row: Row; edit: () => void }) {
  if (!isStored(row) || row.author === "system") return null;
  return (
    <span class="buttons-row">
      <Versions view={view} row={row} />
      <CopyButton text={row.text ?? ""} />
      <IconButton icon="edit" name="Edit" disabled={running.value} act={edit} />
    </span>
  );
}

export function AnswerActions({ view, row }: { view: View; row: Row }) {
  const seen = () =>
    attempt(async () => {
      const body = await call<unknown>("GET", conversationPath(view.id, `/seen/${row.id}`));
      dialog.value = { kind: "text", title: "What the model saw", text: JSON.stringify(body, withoutPictures, 2) };
    });
  return (
    <>
      <CopyButton text={row.text ?? ""} />
      {isStored(row) && (
        <>
          <IconButton icon="retry" name="Retry" disabled={running.value} act={() => retryRow(view, row)} />
          <IconButton icon="branch" name="Branch from here" act={() => void branch(view, row)} />
          {"speechSynthesis" in window && <IconButton icon="read" name="Read aloud" act={() => readAloud(row.text ?? "")} />}
          <IconButton icon="seen" name="What the model saw" act={() => void seen()} />
        </>
      )}
    </>
  );
}

/** The text of a message, to be changed. The message stays as it is until the new version is stored. */
export function EditBox({ view, row, close }: { view: View; row: Row; close: () => void }) {
  const area = useRef<HTMLTextAreaElement>(null);
  const [text, setText] = useState(row.text ?? "");
  const [busy, setBusy] = useState(false);
  useLayoutEffect(() => {
    const box = area.current;
    if (box === null) return;
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, window.innerHeight * 0.5)}px`;
  }, [text]);
  useLayoutEffect(() => {
    area.current?.focus();
    area.current?.scrollIntoView({ block: "nearest" });
  }, []);
  const attachments = (row.parts ?? []).flatMap(({ blob, name }) => (blob === undefined ? [] : [{ blob, name: name ?? "" }]));
  const send = async (event: Event) => {
    event.preventDefault();
    if (busy || (text.trim() === "" && attachments.length === 0)) return;
    setBusy(true);
    const stored = await replace(view, row.id, { text, attachments });
    setBusy(false);
    if (stored) leave();
  };
  const leave = () => {
    close();
    document.querySelector<HTMLTextAreaElement>("textarea[aria-label=Message]")?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") leave();
    else if (event.key === "Enter" && !event.shiftKey && !event.isComposing) void send(event);
    else return;
    event.stopPropagation();
  };
  return (
    <form class="edit" aria-label="Edit message" onSubmit={(event) => void send(event)}>
      <textarea ref={area} aria-label="Edited message" dir="auto" rows={1} value={text} onInput={(event) => setText(event.currentTarget.value)} onKeyDown={onKeyDown} />
      <p class="choices">
        <button type="button" onClick={leave}>
          Cancel
        </button>
        <button type="submit" class="main" disabled={busy || running.value}>
          Send
        </button>
      </p>
    </form>
  );
}
