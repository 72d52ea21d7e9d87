// Attachments. They are uploaded while the person writes; the message then refers to them.
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
  if (added.length < all.length) toast(`A message can have ${COUNT_MAX} attachments. Send the others with another message.`, undefined, true);
  to.put([...to.chips.value, ...added]);
  added.forEach((chip) => upload(to, chip));
}

function upload(to: Files, { id, file }: Chip): void {
  const alter = (fields: Partial<Chip>) =>
    to.put(to.chips.value.map((chip) => (chip.id === id ? { ...chip, ...fields } : chip)));
  if (file === undefined || file.size > BYTES_MAX) return alter({ error: `${file?.name} is too large. The limit is 20 MB.` });
  alter({ error: "", sent: 0 });
  const request = new XMLHttpRequest(); // fetch reports no upload progress
  request.open("POST", `/api/attachments?name=${encodeURIComponent(file.name)}`);
  Object.entries(proof()).forEach(([name, value]) => request.setRequestHeader(name, value));
  request.responseType = "json";
  request.upload.onprogress = (event) => alter({ sent: event.loaded / event.total });
  request.onerror = () => alter({ error: `${file.name} was not uploaded: the server is not responding.` });
  request.onload = () => {
    const told = (request.response ?? {}) as Attached & { detail?: string; hint?: string };
    if (request.status === 201) alter({ attached: told, name: told.name, sent: 1 });
    else alter({ error: `${told.detail ?? `The server returned status ${request.status}.`} ${told.hint ?? ""}`.trim() });
  };
  request.send(file);
}

/** Take the attachments for the message that is sent now. Null while an upload is incomplete. */
export function takeAttached(conversation: string | null): Attached[] | null {
  const files = filesOf(conversation);
  const missing = files.chips.value.filter((chip) => chip.attached === undefined);
  if (missing.length > 0) {
    const failed = missing.some((chip) => chip.error);
    toast(failed ? "An attachment could not be uploaded. Remove it or try again." : "Attachments are still uploading.", undefined, failed);
    return null;
  }
  const taken = files.chips.value.flatMap((chip) => chip.attached ?? []);
  files.put([]);
  return taken;
}

const size = (bytes: number): string => (bytes < 1e5 ? `${Math.ceil(bytes / 1e3)} KB` : `${(bytes / 1e6).toFixed(1)} MB`);

/** The attachments of the next message, above the input. Files can be pasted, or dropped anywhere on the page. */
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
    events.forEach((event) => document.addEventListener(event, take));
    return () => events.forEach((event) => document.removeEventListener(event, take));
  }, [conversation]);
  const files = filesOf(conversation);
  if (files.chips.value.length === 0) return null;
  return (
    <ul class="waiting" aria-label="Attachments">
      {files.chips.value.map((chip) => {
        const name = visible(chip.name);
        const remove = () => files.put(files.chips.value.filter((other) => other.id !== chip.id));
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
      <button type="button" title="Attach text files, pictures or PDFs" onClick={() => input.current?.click()}>Attach</button>
    </>
  );
}

/** A JSON replacer that leaves out the data of pictures: megabytes that nobody can read. */
export const withoutPictures = (_key: string, value: unknown): unknown =>
  typeof value === "string" && value.length > 2000 && /^(data:image\/\w+;base64,)?[\w+/]+=*$/.test(value) ? `[picture data, ${value.length} characters]` : value;

function Picture({ path, words, height }: { path: string; words: string; height: number }) {
  const address = useAddress(path);
  const [shown, show] = useState(address); // a picture on screen is not fetched again when its address is renewed
  useEffect(() => show((before) => before ?? address), [address]);
  const image = <img {...(shown !== undefined && { src: shown })} alt={words} loading="lazy" height={height} onError={() => show(address)} />;
  return address === undefined ? image : <a href={address} target="_blank" rel="noopener">{image}</a>;
}

/** The attachments of a row: pictures are shown, other files can be downloaded. */
export function Parts({ conversation, parts = [] }: { conversation: string | null; parts?: Row["parts"] }) {
  if (parts.length === 0) return null;
  return (
    <ul class="parts">
      {parts.map(({ blob, type, name, media_type, height }, n) => {
        const words = visible(name || media_type || "File");
        if (conversation === null || blob === undefined) return <li key={n}>{words}</li>;
        const path = conversationPath(conversation, `/attachments/${blob}`);
        if (type !== "image") return <li key={n}><Download path={path} name={name}>{words}</Download></li>;
        return <li key={n} class="picture"><Picture path={path} words={words} height={Math.min(height || THUMB_PX, THUMB_PX)} /></li>;
      })}
    </ul>
  );
}
