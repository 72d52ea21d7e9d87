// The files of a conversation: the folder as a tree, previews and downloads. Loaded when the panel is opened first.
import { useEffect, useState } from "preact/hooks";
import { call, conversationPath, Problem } from "./api";
import { ProjectPicker } from "./choices";
import { useLoaded } from "./hooks";
import { Icon, IconButton, type IconName } from "./icon";
import { proof } from "./key";
import { Prose } from "./prose";
import { Download, useAddress } from "./signed";
import { openedFile, panel, running, type View } from "./state";
import { t } from "./text";
import { bytes, visible } from "./words";

interface Entry {
  name: string;
  path: string | null; // null if the name cannot be requested
  kind: "dir" | "file" | "link" | "other";
  size: number;
}
interface Listing { folder: string; exists: boolean; entries: Entry[]; omitted: number }
const filePath = (view: View, what: string, path: string): string => conversationPath(view.id, `/files${what}?path=${encodeURIComponent(path)}`);

/** The entries of a folder, read again after every run, or the reason why they cannot be read. */
function useListing(view: View, path: string): Listing | string | null {
  const { found, problem } = useLoaded(() => call<Listing>("GET", filePath(view, "", path)), [view, path, running.value]);
  return problem || found;
}

export function FilesPanel({ view }: { view: View }) {
  const top = useListing(view, "");
  const open = openedFile.value;
  const listing = typeof top === "object" ? top : null;
  return <aside class="files-panel" aria-label={t("files.title")}>
    <header>
      {open !== null && <IconButton icon="back" name={t("files.back")} act={() => (openedFile.value = null)} />}
      <h2>{open === null ? t("files.title") : visible(open.split("/").at(-1) ?? open)}</h2>
      {open === null ? (
        listing?.exists &&
          <Download class="button quiet" path={filePath(view, "/zip", "")} name=""><Icon name="download" label={t("files.all")} /></Download>
      ) : <Download class="button quiet" path={`${filePath(view, "/content", open)}&download=true`} name={open.split("/").at(-1)}>
        <Icon name="download" label={t("files.download")} />
      </Download>}
      <IconButton icon="close" name={t("files.close")} act={() => (panel.value = false)} />
    </header>
    {open === null ? <div class="scroll">
      <p class="meta where">{listing?.folder ? <code>{visible(listing.folder)}</code> : null} <ProjectPicker /></p>
      {typeof top === "string" ? <p class="refusal">{top}</p> : top === null ? <p class="empty">{t("common.loading")}</p> : <Entries view={view} listing={top} />}
    </div> : <Preview key={open} view={view} path={open} />}
  </aside>;
}

function Entries({ view, listing }: { view: View; listing: Listing }) {
  if (listing.entries.length === 0) return <p class="empty">{t("files.none")}</p>;
  return <ul>
    {listing.entries.map((entry) =>
      <li key={entry.name}>{entry.kind === "dir" && entry.path !== null ? <Folder view={view} name={entry.name} path={entry.path} /> : <FileEntry entry={entry} />}</li>)}
    {listing.omitted > 0 && <li class="meta">{t("files.omitted", { n: listing.omitted })}</li>}
  </ul>;
}

function FileEntry({ entry }: { entry: Entry }) {
  const { path } = entry;
  const content = <>
    <Icon name={iconOf(entry.name)} /> <span class="name">{visible(entry.name)}</span> {entry.kind === "file" && <span class="meta">{bytes(entry.size)}</span>}
  </>;
  if (entry.kind !== "file" || path === null) return <span class="entry">{content}</span>;
  return <button type="button" class="entry" onClick={() => (openedFile.value = path)}>{content}</button>;
}

function Folder({ view, name, path }: { view: View; name: string; path: string }) {
  const [open, setOpen] = useState(false);
  return <details onToggle={(event) => setOpen(event.currentTarget.open)}>
    <summary class="entry"><Icon name="forward" /> <span class="name">{visible(name)}</span></summary>
    {open && <FolderEntries view={view} path={path} />}
  </details>;
}

function FolderEntries({ view, path }: { view: View; path: string }) {
  const found = useListing(view, path);
  return typeof found === "string" ? <p class="refusal">{found}</p> : found === null ? null : <Entries view={view} listing={found} />;
}

// -- previews ------------------------------------------------------------------------------------------------------

const PICTURE = /\.(png|jpe?g|gif|webp)$/i;
/** Shown by the browser itself in a frame that runs no script and asks for nothing; the server sends a policy with it too. */
const FRAME = /\.(pdf|html?|svg)$/i;
const iconOf = (name: string): IconName => (PICTURE.test(name) ? "seen" : "file");

function Preview({ view, path }: { view: View; path: string }) {
  if (PICTURE.test(path)) return <Picture view={view} path={path} />;
  return FRAME.test(path) ? <Framed view={view} path={path} /> : <TextFile view={view} path={path} />;
}

function Picture({ view, path }: { view: View; path: string }) {
  const address = useAddress(filePath(view, "/content", path));
  return <div class="scroll">{address !== undefined && <img src={address} alt={visible(path)} />}</div>;
}

function Framed({ view, path }: { view: View; path: string }) {
  const address = useAddress(filePath(view, "/content", path));
  const [first, setFirst] = useState<string>(); // a frame on screen is not loaded again when its address is renewed
  useEffect(() => setFirst((before) => before ?? address), [address]);
  const sandbox = /\.pdf$/i.test(path) ? {} : { sandbox: "" }; // the viewer for PDFs does not start in a sandboxed frame
  return first === undefined ? null : <iframe src={first} title={visible(path)} {...sandbox} />;
}

const TEXT_MAX = 500_000;

function TextFile({ view, path }: { view: View; path: string }) {
  const load = () => readText(filePath(view, "/content", path));
  const { found: text, problem } = useLoaded(load, [view, path, running.value], 0, "error.no_response");
  if (problem !== "") return <p class={problem === t("files.binary") ? "scroll meta" : "refusal"}>{problem}</p>;
  if (text === null) return <p class="empty">{t("common.loading")}</p>;
  return <div class="scroll" tabIndex={0} role="region" aria-label={visible(path)}>
    {/\.(md|markdown)$/i.test(path) ? <Prose text={text} growing={false} /> : /\.csv$/i.test(path) ? <Table rows={parseCsv(text)} /> : <Prose text={fenced(text, path)} growing={false} whole />}
  </div>;
}

async function readText(path: string): Promise<string> {
  const answer = await fetch(path, { headers: proof(), cache: "no-store" });
  if (!answer.ok) throw new Problem(answer.status, ((await answer.json()) as { detail?: string }).detail ?? "");
  if (/octet-stream/.test(answer.headers.get("content-type") ?? "")) throw new Problem(415, t("files.binary"));
  const text = await answer.text();
  return text.length > TEXT_MAX ? `${text.slice(0, TEXT_MAX)}\n${t("files.cut")}` : text;
}

/** A text as a block of code in the language of its ending. */
function fenced(text: string, path: string): string {
  const longest = (text.match(/`{3,}/g) ?? []).reduce((most, ticks) => Math.max(most, ticks.length), 2);
  const fence = "`".repeat(longest + 1);
  return `${fence}${/\.(\w{1,10})$/.exec(path)?.[1] ?? ""}\n${text}\n${fence}`;
}

const CSV_ROWS_MAX = 500;

/** The rows of a CSV text: cells with quotes may contain commas, quotes and line ends. */
function parseCsv(text: string): string[][] {
  const rows: string[][] = [[]];
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\r\n]*))(,|\r?\n|$)/g)) {
    rows.at(-1)!.push(quoted?.replaceAll('""', '"') ?? plain ?? "");
    if (end === "" || rows.length > CSV_ROWS_MAX) break;
    if (end !== ",") rows.push([]);
  }
  return rows.filter((row) => row.length > 1 || row[0] !== "");
}

function Table({ rows: [head = [], ...rows] }: { rows: string[][] }) {
  return <table>
    <thead><tr>{head.map((cell, n) => <th key={n}>{visible(cell)}</th>)}</tr></thead>
    <tbody>{rows.map((row, n) => <tr key={n}>{row.map((cell, m) => <td key={m}>{visible(cell)}</td>)}</tr>)}</tbody>
  </table>;
}
