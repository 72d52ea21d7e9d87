// Attachments. They are uploaded while the person writes; the message then refers to them.
import { useEffect, useRef, useState } from "preact/hooks";
import { conversationPath } from "./api";
import { type Chip, type Files, filesOf, newId } from "./drafts";
import { IconButton } from "./icon";
import { proof } from "./key";
import { urlOf } from "./paths";
import { Download, useAddress } from "./signed";
import { toast } from "./state";
import { formatNumber, t } from "./text";
import type { Attached, Row } from "./types";
import { visible } from "./words";

const COUNT_MAX = 10;
const BYTES_MAX = 20 * 1024 * 1024;
const THUMB_PX = 200;
/** A longer pasted text becomes a file. */
const PASTE_CHARS_MAX = 4000;
const PASTE_LINES_MAX = 60;
/** The size of the picture of a waiting attachment, in device pixels. */
const CHIP_PX = 96;
const HEAD_BYTES = 8192;

function attach(to: Files, files: Iterable<File>, pasted = false): void {
  const all = [...files].map((file) => ({ id: newId(), name: file.name, bytes: file.size, sent: 0, file, ...(pasted && { pasted }) }));
  const added = all.slice(0, COUNT_MAX - to.chips.value.length);
  if (added.length < all.length) toast(t("attach.too_many", { n: COUNT_MAX }), undefined, true);
  to.put([...to.chips.value, ...added]);
  added.forEach((chip) => {
    void unreadable(chip.file).then((error) => (error === "" ? upload(to, chip) : alter(to, chip.id, { error, refused: true })));
    void thumbnail(chip.file).then((thumb) => thumb !== undefined && alter(to, chip.id, { thumb }));
  });
}

const alter = (to: Files, id: number, fields: Partial<Chip>): void => to.put(to.chips.value.map((chip) => (chip.id === id ? { ...chip, ...fields } : chip)));

/** A small copy of a picture as a data URL, or undefined if the file is no picture. */
async function thumbnail(file: File): Promise<string | undefined> {
  try {
    const picture = await createImageBitmap(file);
    const scale = Math.min(1, CHIP_PX / Math.max(picture.width, picture.height));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.round(picture.width * scale));
    canvas.height = Math.max(1, Math.round(picture.height * scale));
    canvas.getContext("2d")?.drawImage(picture, 0, 0, canvas.width, canvas.height);
    picture.close();
    return canvas.toDataURL("image/webp", 0.8);
  } catch {
    return undefined;
  }
}

const READABLE = /^(\x89PNG|GIF8|\xff\xd8\xff|RIFF[^]{4}WEBP|%PDF-)/;
const OFFICE = /\.(docx?|xlsx?|pptx?|odt|ods|odp|rtf|pages|numbers|key)$/i;
const ARCHIVE = /\.(zip|tar|t?gz|bz2|xz|7z|rar)$/i;

/** Why the server will refuse a file, so that the person knows before megabytes are uploaded. The server decides about all others. */
async function unreadable(file: File): Promise<string> {
  const bytes = await file.slice(0, HEAD_BYTES).arrayBuffer().catch(() => new ArrayBuffer(0));
  const head = String.fromCharCode(...new Uint8Array(bytes));
  if (READABLE.test(head) || !head.includes("\0")) return "";
  return t(OFFICE.test(file.name) ? "attach.unreadable_office" : ARCHIVE.test(file.name) ? "attach.unreadable_archive" : "attach.unreadable", { name: file.name });
}

function upload(to: Files, { id, file }: Chip): void {
  const alterThis = (fields: Partial<Chip>) => alter(to, id, fields);
  if (file === undefined || file.size > BYTES_MAX) return alterThis({ error: t("attach.too_large", { name: file?.name ?? "" }) });
  alterThis({ error: "", sent: 0 });
  const request = new XMLHttpRequest(); // fetch reports no upload progress
  request.open("POST", urlOf(`/api/attachments?name=${encodeURIComponent(file.name)}`));
  Object.entries(proof()).forEach(([name, value]) => request.setRequestHeader(name, value));
  request.responseType = "json";
  request.upload.onprogress = (event) => alterThis({ sent: event.loaded / event.total });
  request.onerror = () => alterThis({ error: t("attach.no_response", { name: file.name }) });
  request.onload = () => {
    const told = (request.response ?? {}) as Attached & { detail?: string; hint?: string };
    if (request.status === 201) alterThis({ attached: told, name: told.name, sent: 1 });
    else alterThis({ error: `${told.detail ?? t("error.status", { status: String(request.status) })} ${told.hint ?? ""}`.trim() });
  };
  request.send(file);
}

/** Take the attachments for the message that is sent now. Null while an upload is incomplete. */
export function takeAttached(conversation: string | null): Attached[] | null {
  const files = filesOf(conversation);
  const missing = files.chips.value.filter((chip) => chip.attached === undefined);
  if (missing.length > 0) {
    const failed = missing.some((chip) => chip.error);
    toast(t(failed ? "attach.failed" : "attach.uploading"), undefined, failed);
    return null;
  }
  const taken = files.chips.value.flatMap((chip) => chip.attached ?? []);
  files.put([]);
  return taken;
}

const size = (bytes: number): string =>
  bytes < 1e5 ? t("size.kb", { n: Math.ceil(bytes / 1e3) }) : t("size.mb", { n: formatNumber(bytes / 1e6, { minimumFractionDigits: 1, maximumFractionDigits: 1 }) });

/** The attachments of the next message, above the input. Files can be pasted, or dropped anywhere on the page. */
export function Waiting({ conversation, insert }: { conversation: string | null; insert: (text: string) => void }) {
  useEffect(() => {
    const take = (event: Event) => {
      const { dataTransfer, clipboardData } = event as DragEvent & ClipboardEvent;
      const from = dataTransfer ?? clipboardData;
      const text = clipboardData?.getData("text/plain") ?? "";
      const isLong = text.length > PASTE_CHARS_MAX || text.split("\n", PASTE_LINES_MAX + 1).length > PASTE_LINES_MAX;
      if (isLong && event.target instanceof HTMLElement && event.target.matches(".composer textarea")) {
        event.preventDefault();
        return attach(filesOf(conversation), [new File([text], t("attach.pasted"), { type: "text/plain" })], true);
      }
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
  return <ul class="waiting" aria-label={t("attach.list")}>
    {files.chips.value.map((chip) => {
      const name = visible(chip.name);
      const remove = () => files.put(files.chips.value.filter((other) => other.id !== chip.id));
      return <li key={chip.id} class={chip.error ? "bad" : ""}>
        {chip.thumb !== undefined && <img src={chip.thumb} alt="" height="36" />}
        {chip.error ? <span role="alert">{visible(chip.error)}</span> : <span>{name} <small>{size(chip.bytes)}</small></span>}
        {!chip.error && !chip.attached && <progress aria-label={t("attach.uploading_named", { name })} value={chip.sent} />}
        {chip.pasted && chip.file !== undefined && <button type="button" class="quiet" onClick={() => void chip.file!.text().then(insert).then(remove)}>{t("attach.as_text")}</button>}
        {chip.error && !chip.refused && <button type="button" class="quiet" onClick={() => upload(files, chip)}>{t("common.try_again")}</button>}
        <button type="button" class="quiet" aria-label={t("attach.remove", { name })} onClick={remove}>×</button>
      </li>;
    })}
  </ul>;
}

export function AttachButton({ conversation }: { conversation: string | null }) {
  const input = useRef<HTMLInputElement>(null);
  const take = ({ currentTarget }: { currentTarget: HTMLInputElement }) => {
    attach(filesOf(conversation), currentTarget.files ?? []);
    currentTarget.value = "";
  };
  return <>
    <input ref={input} type="file" multiple hidden aria-label={t("attach.files")} onChange={take} />
    <IconButton icon="attach" name={t("attach.hint")} act={() => input.current?.click()} />
  </>;
}

/** A JSON replacer that leaves out the data of pictures: megabytes that nobody can read. */
export const withoutPictures = (_key: string, value: unknown): unknown =>
  typeof value === "string" && value.length > 2000 && /^(data:image\/\w+;base64,)?[\w+/]+=*$/.test(value) ? t("attach.picture_data", { n: value.length }) : value;

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
  return <ul class="parts">
    {parts.map(({ blob, type, name, media_type, height }, n) => {
      const words = visible(name || media_type || t("attach.file"));
      if (conversation === null || blob === undefined) return <li key={n}>{words}</li>;
      const path = conversationPath(conversation, `/attachments/${blob}`);
      if (type !== "image") return <li key={n}><Download path={path} name={name}>{words}</Download></li>;
      return <li key={n} class="picture"><Picture path={path} words={words} height={Math.min(height || THUMB_PX, THUMB_PX)} /></li>;
    })}
  </ul>;
}
