// The files that a turn changed: one line under the turn, the diffs when it is opened, and a button that reverts them.
import { useState } from "preact/hooks";
import { call, conversationPath } from "./api";
import { attempt, toast, type View } from "./state";
import type { Row } from "./types";
import { visible } from "./words";

interface Changed {
  path: string;
  what: "added" | "changed" | "removed";
  diff: string;
  note: string;
}
type Turns = { turns: { files: Changed[]; missed: string }[] };

const SIGNS: Record<string, string> = { "+": "plus", "-": "minus", "@": "place" };

function Diff({ file }: { file: Changed }) {
  const lines = file.diff.split("\n").slice(2); // the first two name the file
  return (
    <section class="diff" aria-label={visible(file.path)}>
      <h3>
        <code>{visible(file.path)}</code> <span class="meta">{`${file.what}. ${file.note}`.trim()}</span>
      </h3>
      {lines.length > 0 && (
        <pre tabIndex={0}>
          {lines.map((line, n) => (
            <span key={n} class={SIGNS[line[0] ?? ""]}>
              {`${visible(line)}\n`}
            </span>
          ))}
        </pre>
      )}
    </section>
  );
}

export function FilesRow({ view, row }: { view: View; row: Row }) {
  const [files, setFiles] = useState<Changed[] | null>(null);
  const [left, setLeft] = useState<[string, string][]>([]);
  const [busy, setBusy] = useState(false);
  const turn = row.of ?? "";
  const look = async (event: Event) => {
    if (!(event.currentTarget as HTMLDetailsElement).open) return;
    const path = conversationPath(view.id, `/changes?turn=${encodeURIComponent(turn)}`);
    const found = await attempt(() => call<Turns>("GET", path));
    if (found !== undefined) setFiles(found.turns[0]?.files ?? []);
  };
  const putBack = async () => {
    setBusy(true);
    const path = conversationPath(view.id, `/changes/${encodeURIComponent(turn)}/put_back`);
    const back = await attempt(() => call<{ done: string[]; left: Record<string, string> }>("POST", path));
    setBusy(false);
    if (back === undefined) return;
    setLeft(Object.entries(back.left));
    toast(back.done.length === 0 ? "Nothing was reverted." : `Reverted: ${visible(back.done.join(", ")).slice(0, 200)}`);
  };
  const undone = row.state === "undone";
  return (
    <details class="fold files" onToggle={(event) => void look(event)}>
      <summary>
        {row.text}
        {undone && " Reverted."}
      </summary>
      <div>
        {files?.map((file) => <Diff key={file.path} file={file} />)}
        {left.length > 0 && (
          <ul class="left" role="status">
            {left.map(([path, why]) => (
              <li key={path}>
                Not reverted: <code>{visible(path)}</code> {why}
              </li>
            ))}
          </ul>
        )}
        {!undone && files !== null && files.length > 0 && (
          <button type="button" disabled={busy} onClick={() => void putBack()}>
            Revert changes
          </button>
        )}
      </div>
    </details>
  );
}
