// The files that a turn changed: one line under the turn, the diffs when it is opened, and a button that reverts them.
import { useState } from "preact/hooks";
import { call, conversationPath } from "./api";
import { useBusy } from "./hooks";
import { attempt, toast, type View } from "./state";
import { t, tx } from "./text";
import { OpensFile } from "./toolrow";
import type { Row } from "./types";
import { visible } from "./words";

interface Changed { path: string; what: "added" | "changed" | "removed"; diff: string; note: string }
type Turns = { turns: { files: Changed[]; missed: string }[] };
const SIGNS: Record<string, string> = { "+": "plus", "-": "minus", "@": "place" };

/** The lines of a unified diff, without the two lines that name the file. */
export function DiffLines({ diff }: { diff: string }) {
  const lines = diff.split("\n").slice(2);
  if (lines.length === 0) return null;
  return <pre tabIndex={0}>{lines.map((line, n) => <span key={n} class={SIGNS[line[0] ?? ""]}>{`${visible(line)}\n`}</span>)}</pre>;
}

const Diff = ({ file }: { file: Changed }) => <section class="diff" aria-label={visible(file.path)}>
  <h3>
    <code>{file.what === "removed" ? visible(file.path) : <OpensFile path={file.path}>{visible(file.path)}</OpensFile>}</code> <span class="meta">{`${t(`changes.${file.what}`)} ${file.note}`.trim()}</span>
  </h3>
  <DiffLines diff={file.diff} />
</section>;

export function FilesRow({ view, row }: { view: View; row: Row }) {
  const [files, setFiles] = useState<Changed[] | null>(null);
  const [left, setLeft] = useState<[string, string][]>([]);
  const [busy, run] = useBusy();
  const turn = row.of ?? "";
  const look = async (event: Event) => {
    if (!(event.currentTarget as HTMLDetailsElement).open) return;
    const path = conversationPath(view.id, `/changes?turn=${encodeURIComponent(turn)}`);
    const found = await attempt(() => call<Turns>("GET", path));
    if (found !== undefined) setFiles(found.turns[0]?.files ?? []);
  };
  const putBack = async () => {
    const path = conversationPath(view.id, `/changes/${encodeURIComponent(turn)}/put_back`);
    const back = await run(() => call<{ done: string[]; left: Record<string, string> }>("POST", path));
    if (back === undefined) return;
    setLeft(Object.entries(back.left));
    toast(back.done.length === 0 ? t("changes.nothing") : t("changes.reverted_files", { files: visible(back.done.join(", ")).slice(0, 200) }));
  };
  const undone = row.state === "undone";
  return <details class="fold files" onToggle={(event) => void look(event)}>
    <summary>{row.text}{undone && ` ${t("changes.reverted")}`}</summary>
    <div>
      {files?.map((file) => <Diff key={file.path} file={file} />)}
      {left.length > 0 && <ul class="left" role="status">
        {left.map(([path, why]) => <li key={path}>{tx("changes.not_reverted", { file: <code>{visible(path)}</code>, reason: why })}</li>)}
      </ul>}
      {!undone && files !== null && files.length > 0 &&
        <button type="button" disabled={busy} onClick={() => void putBack()}>{t("changes.revert")}</button>}
    </div>
  </details>;
}
