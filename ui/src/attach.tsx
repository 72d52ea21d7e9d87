// What goes with a message besides words. It is uploaded while the person writes, and the message then names it.
import { useEffect, useRef, useState } from "preact/hooks";
import { conversationPath, proof } from "./api";
import { type Chip, type Files, filesOf, newId } from "./drafts";
import { Download, useAddress } from "./signed";
import { toast } from "./state";
import type { Attached, Row } from "./types";
import { visible } from "./words";

const COUNT_MAX = 10;
const BYTES_MAX = 20 * 1024 * 1024;
const THUMB_PX = 200;

function attach(to: Files, files: Iterable<File>): void {
  const all = [...files].map((file) => ({ id: newId(), name: file.name, bytes: file.size, sent: 0, file }));
  const added = all.slice(0, COUNT_MAX - to.chips.value.length);
  if (added.length < all.length) toast(`A message takes ${COUNT_MAX} attachments. Send the others with another.`, undefined, true);
  to.put([...to.chips.value, ...added]);
  added.forEach((chip) => upload(to, chip));
}

function upload(to: Files, { id, file }: Chip): void {
  const alter = (fields: Partial<Chip>) =>
    to.put(to.chips.value.map((each) => (each.id === id ? { ...each, ...fields } : each)));
  if (file === undefined || file.size > BYTES_MAX) return alter({ error: `${file?.name} is too large. The most is 20 MB.` });
  alter({ error: "", sent: 0 });
  const request = new XMLHttpRequest(); // fetch tells nothing of how far it is
  request.open("POST", `/api/attachments?name=${encodeURIComponent(file.name)}`);
  Object.entries(proof()).forEach(([name, value]) => request.setRequestHeader(name, value));
  request.responseType = "json";
  request.upload.onprogress = (event) => alter({ sent: event.loaded / event.total });
  request.onerror = () => alter({ error: `${file.name} is not uploaded: the server does not answer.` });
  request.onload = () => {
    const told = (request.response ?? {}) as Attached & { detail?: string; hint?: string };
    if (request.status === 201) alter({ attached: told, name: told.name, sent: 1 });
    else alter({ error: `${told.detail ?? `The server answered ${request.status}.`} ${told.hint ?? ""}`.trim() });
  };
  request.send(file);
}

/** What goes with the message that is sent now; null while something is not there yet. */
export function takeAttached(conversation: string | null): Attached[] | null {
  const files = filesOf(conversation);
  const missing = files.chips.value.filter((each) => each.attached === undefined);
  if (missing.length > 0) {
    const failed = missing.some((each) => each.error);
    toast(failed ? "Something could not be attached. Remove it, or try again." : "Not everything is uploaded yet.", undefined, failed);
    return null;
  }
  const taken = files.chips.value.flatMap((each) => each.attached ?? []);
  files.put([]);
  return taken;
}

const size = (bytes: number): string => (bytes < 1e5 ? `${Math.ceil(bytes / 1e3)} KB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** Above the input: what waits. Files can be dropped anywhere on the page, and pasted. */
export function Waiting({ conversation }: { conversation: string | null }) {
  useEffect(() => {
    const take = (event: Event) => {
      const { dataTransfer, clipboardData } = event as DragEvent & ClipboardEvent;
      const from = dataTransfer ?? clipboardData;
      if (!from?.types.includes("Files") || (clipboardData && from.types.includes("text/plain"))) return;
      event.preventDefault();
      if (event.type !== "dragover") attach(filesOf(conversation), from.files);
    };
    const events = ["dragover", "drop", "paste"];
    events.forEach((each) => document.addEventListener(each, take));
    return () => events.forEach((each) => document.removeEventListener(each, take));
  }, [conversation]);
  const files = filesOf(conversation);
  if (files.chips.value.length === 0) return null;
  return (
    <ul class="waiting" aria-label="Attachments">
      {files.chips.value.map((chip) => {
        const name = visible(chip.name);
        const remove = () => files.put(files.chips.value.filter((each) => each.id !== chip.id));
        return (
          <li key={chip.id} class={chip.error ? "bad" : ""}>
            {chip.error ? <span role="alert">{visible(chip.error)}</span> : <span>{name} <small>{size(chip.bytes)}</small></span>}
            {!chip.error && !chip.attached && <progress aria-label={`Uploading ${name}`} value={chip.sent} />}
            {chip.error && <button type="button" class="quiet" onClick={() => upload(files, chip)}>Try again</button>}
            <button type="button" class="quiet" aria-label={`Remove ${name}`} onClick={remove}>×</button>
          </li>
        );
      })}
    </ul>
  );
}

export function AttachButton({ conversation }: { conversation: string | null }) {
  const input = useRef<HTMLInputElement>(null);
  const take = ({ currentTarget }: { currentTarget: HTMLInputElement }) => {
    attach(filesOf(conversation), currentTarget.files ?? []);
    currentTarget.value = "";
  };
  return (
    <>
      <input ref={input} type="file" multiple hidden aria-label="Files to attach" onChange={take} />
      <button type="button" title="A text, a picture or a PDF" onClick={() => input.current?.click()}>Attach</button>
    </>
  );
}

/** For who reads a request: a picture in it is megabytes of nothing to read. */
export const withoutPictures = (_key: string, value: unknown): unknown =>
  typeof value === "string" && value.length > 2000 && /^(data:image\/\w+;base64,)?[\w+/]+=*$/.test(value) ? `[${value.length} characters of a picture]` : value;

function Picture({ path, words, height }: { path: string; words: string; height: number }) {
  const address = useAddress(path);
  const [shown, show] = useState(address); // one that is shown is not fetched again when its address is renewed
  useEffect(() => show((before) => before ?? address), [address]);
  const image = <img {...(shown !== undefined && { src: shown })} alt={words} loading="lazy" height={height} onError={() => show(address)} />;
  return address === undefined ? image : <a href={address} target="_blank" rel="noopener">{image}</a>;
}

/** In a row: pictures are shown, all else is named and can be saved. */
export function Parts({ conversation, parts = [] }: { conversation: string | null; parts?: Row["parts"] }) {
  if (parts.length === 0) return null;
  return (
    <ul class="parts">
      {parts.map(({ blob, type, name, media_type, height }, n) => {
        const words = visible(name || media_type || "A file");
        if (conversation === null || blob === undefined) return <li key={n}>{words}</li>;
        const path = conversationPath(conversation, `/attachments/${blob}`);
        if (type !== "image") return <li key={n}><Download path={path} name={name}>{words}</Download></li>;
        return <li key={n} class="picture"><Picture path={path} words={words} height={Math.min(height || THUMB_PX, THUMB_PX)} /></li>;
      })}
    </ul>
  );
}
