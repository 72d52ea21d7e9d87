// Data, Import: upload an export of another program, see what is in it, and import it. The server works on without the page.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, sentenceOf } from "../api";
import { useBusy, useLook } from "../hooks";
import { Icon } from "../icon";
import { proof } from "../key";
import { urlOf } from "../paths";
import { drawer, follow, go, pathOf, setup, toast } from "../state";
import { t, tx, type TextKey } from "../text";
import { visible } from "../words";
import { Refusal } from "./fields";

interface Imported {
  program: string;
  new: number; grown: number; unchanged: number; beside: number; deleted: number;
  messages: number; tool_calls: number; files: number; missing_files: number;
  memories: number; known_memories: number; left_skills: number;
  skipped: number; reasons: string[];
  left_out: Record<string, number>;
  conversations: string[];
}
type Phase = "none" | "uploading" | "checking" | "ready" | "importing" | "done" | "failed";
interface State { phase: Phase; id: string; name: string; remember: boolean; finished: number; total: number; found: Imported | null; error: string }
interface Upload { name: string; /** From 0 to 1. */ sent: number; request: XMLHttpRequest }

const LOOK_MS = 1000;
const GB = 1024 ** 3;
const BYTES_MAX = 4 * GB;
const KINDS = ".zip,.json,.jsonl,.ndjson,.db";
const WORKING: readonly Phase[] = ["uploading", "checking", "importing"];
/** The import as the server last described it. */
const state = signal<State | null>(null);
/** The upload of this window. It goes on while another section of the settings is open. */
const upload = signal<Upload | null>(null);
const refused = signal("");

async function look(): Promise<void> {
  if (upload.value !== null) return;
  // Without an answer the page keeps the last one: the banner already says that the server is away.
  const found = await call<State>("GET", "/api/import").catch(() => null);
  if (found !== null && upload.value === null) state.value = found;
}

const terminalCommand = (): string => `${setup.value?.terminal || "tenax"} import FILE`;

function send(files: FileList | null): void {
  const [file, ...others] = files ?? [];
  if (file === undefined) return;
  if (upload.value !== null || state.value === null || WORKING.includes(state.value.phase)) return toast(t("import.busy"), undefined, true);
  refused.value = "";
  if (others.length > 0) return void (refused.value = t("import.one_file"));
  if (file.size > BYTES_MAX) return void (refused.value = t("import.too_large", { n: BYTES_MAX / GB, command: terminalCommand() }));
  const request = new XMLHttpRequest(); // fetch reports no upload progress
  const end = (problem: string) => {
    refused.value = problem;
    upload.value = null;
    void look();
  };
  request.open("POST", urlOf(`/api/import?name=${encodeURIComponent(file.name)}`));
  Object.entries(proof()).forEach(([name, value]) => request.setRequestHeader(name, value));
  request.responseType = "json";
  request.upload.onprogress = (event) => (upload.value = { name: file.name, sent: event.loaded / event.total, request });
  request.onerror = () => end(t("attach.no_response", { name: visible(file.name) }));
  request.onabort = () => end("");
  request.onload = () => {
    const { detail, hint } = (request.response ?? {}) as { detail?: string; hint?: string };
    if (request.status !== 202) return end(visible(`${detail ?? t("error.status", { status: String(request.status) })} ${hint ?? ""}`.trim()));
    state.value = request.response as State;
    end("");
  };
  upload.value = { name: file.name, sent: 0, request };
  request.send(file);
}

async function change(method: "POST" | "DELETE", path: string, body?: unknown): Promise<void> {
  try { state.value = await call<State>(method, path, body); } catch (error) { refused.value = sentenceOf(error); }
}
const cancel = (): Promise<void> => change("DELETE", "/api/import");

/** Files may be dropped anywhere while the section is shown. Returns whether files are over the window. */
function useDrop(): boolean {
  const [over, setOver] = useState(false);
  useEffect(() => {
    const take = (event: DragEvent) => {
      if (event.dataTransfer?.types.includes("Files") !== true) return;
      event.preventDefault();
      setOver(event.type === "dragover");
      if (event.type === "drop") send(event.dataTransfer.files);
    };
    const leave = (event: DragEvent) => event.relatedTarget === null && setOver(false);
    document.addEventListener("dragover", take);
    document.addEventListener("drop", take);
    document.addEventListener("dragleave", leave);
    return () => {
      document.removeEventListener("dragover", take);
      document.removeEventListener("drop", take);
      document.removeEventListener("dragleave", leave);
    };
  }, []);
  return over;
}

export function Import() {
  const now = state.value;
  const phase: Phase = upload.value !== null ? "uploading" : now?.phase ?? "none";
  useLook(look, [phase], WORKING.includes(phase) ? LOOK_MS : 0);
  const over = useDrop();
  const title = useRef<HTMLHeadingElement>(null);
  const before = useRef(phase);
  useLayoutEffect(() => {
    // The button that was pressed is gone: the keyboard goes on at the title.
    if (before.current !== phase && document.activeElement === document.body) title.current?.focus();
    before.current = phase;
  }, [phase]);
  return <section class="import" aria-labelledby="import-title">
    <h2 id="import-title" tabIndex={-1} ref={title}>{t("data.import")}</h2>
    <Refusal text={refused.value || (phase === "failed" ? visible(now!.error) : "")} />
    <p class="hidden" role="status">{spoken(phase, now)}</p>
    {now !== null && (
      phase === "none" || phase === "failed" ? <Choose over={over} />
        : phase === "ready" ? <Ready key={now.id} now={now} found={now.found!} />
          : phase === "done" ? <Done name={now.name} found={now.found!} />
            : <Working phase={phase} now={now} />
    )}
  </section>;
}

/** What a screen reader says: the phases, and every tenth of the way. */
function spoken(phase: Phase, now: State | null): string {
  if (phase === "none" || phase === "failed") return "";
  if (phase !== "importing") return t(`import.${phase}`, { name: visible(upload.value?.name ?? now?.name ?? "") });
  return t("import.percent", { n: now!.total > 0 ? Math.floor((now!.finished * 10) / now!.total) * 10 : 0 });
}

function Choose({ over }: { over: boolean }) {
  const input = useRef<HTMLInputElement>(null);
  const take = ({ currentTarget }: { currentTarget: HTMLInputElement }) => {
    send(currentTarget.files);
    currentTarget.value = "";
  };
  return <>
    <p class="meta">{t("import.about")}</p>
    <div class="drop" data-over={over}>
      <input ref={input} type="file" accept={KINDS} hidden aria-label={t("import.file")} onChange={take} />
      <button type="button" onClick={() => input.current?.click()}><Icon name="file" />{t("import.choose")}</button>
      <span class="meta">{t("import.drop")}</span>
    </div>
  </>;
}

/** The upload, the dry run or the import, with its progress. */
function Working({ phase, now }: { phase: Phase; now: State }) {
  const own = upload.value;
  const stop = () => (own === null ? cancel() : own.request.abort());
  const name = visible(own?.name ?? now.name);
  const hint: TextKey = phase === "uploading" ? (own === null ? "import.elsewhere" : "import.stay") : "import.leave";
  return <div class="card">
    <p>{t(`import.${phase as "uploading" | "checking" | "importing"}`, { name })}</p>
    {phase === "uploading"
      ? own !== null && <progress aria-label={t("attach.uploading_named", { name })} value={own.sent} />
      : <progress aria-label={t("import.progress")} {...(now.total > 0 && { value: now.finished, max: now.total })} />}
    {phase === "importing" && <p class="meta">{t("import.of", { done: now.finished, n: now.total })}</p>}
    {phase === "checking" && now.finished > 0 && <p class="meta">{t("data.conversations", { n: now.finished })}</p>}
    <p class="meta">{t(hint)}</p>
    {(phase !== "uploading" || own !== null) && <div class="choices">
      <button type="button" onClick={() => void stop()}>{t(phase === "importing" ? "import.stop" : "common.cancel")}</button>
    </div>}
  </div>;
}

function Ready({ now, found }: { now: State; found: Imported }) {
  const [remember, setRemember] = useState(false);
  const [busy, run] = useBusy();
  const count = found.new + found.grown + found.beside;
  const isNew = count + found.memories > 0;
  const confirm = () => run(() => change("POST", "/api/import/confirm", { id: now.id, remember }));
  return <div class="card">
    <p>{tx("import.found", { program: found.program, name: <b>{visible(now.name)}</b> })}</p>
    {!isNew && <p>{t(found.unchanged + found.deleted + found.known_memories > 0 ? "import.nothing_new" : "import.nothing")}</p>}
    <Summary found={found} />
    {count > 0 && <div class="field switch">
      <label><input type="checkbox" role="switch" checked={remember} aria-describedby="import-remember" onChange={() => setRemember(!remember)} />{t("import.remember")}</label>
      <p class="meta" id="import-remember">{t("import.remember_about", { n: count })}</p>
    </div>}
    <div class="choices">
      {isNew && <button type="button" class="main" disabled={busy} onClick={() => void confirm()}>
        {count > 0 ? t("import.confirm", { n: count }) : t("import.confirm_memories", { n: found.memories })}
      </button>}
      <button type="button" disabled={busy} onClick={() => void run(cancel)}>{t(isNew ? "common.cancel" : "common.close")}</button>
    </div>
  </div>;
}

function Done({ name, found }: { name: string; found: Imported }) {
  const [first] = found.conversations;
  const showList = () => {
    go("/");
    drawer.value = true; // on a phone the list is in the drawer
  };
  return <div class="card">
    <p class="good"><Icon name="done" /> {t("import.done", { name: visible(name) })}</p>
    <Summary found={found} />
    <div class="choices">
      <button type="button" class="main" onClick={showList}>{t("import.list")}</button>
      {first !== undefined && <a class="button" href={urlOf(pathOf(first))} onClick={follow}>{t("import.open_first")}</a>}
      <button type="button" onClick={() => void cancel()}>{t("common.close")}</button>
    </div>
  </div>;
}

const COUNTS = ["new", "grown", "beside", "unchanged", "deleted", "messages", "tool_calls", "files", "missing_files", "memories", "known_memories", "skipped"] as const;

/** What was found or imported, what was skipped and why, and what is not taken. */
function Summary({ found }: { found: Imported }) {
  const left = Object.entries(found.left_out);
  const more = found.skipped - found.reasons.length;
  return <>
    <ul class="counts">{COUNTS.map((name) => found[name] > 0 && <li key={name}>{t(`import.count_${name}`, { n: found[name] })}</li>)}</ul>
    {found.reasons.length > 0 && <Fold title={t("import.reasons")}>
      {found.reasons.map((reason, n) => <li key={n} dir="auto">{visible(reason)}</li>)}
      {more > 0 && <li>{t("import.more_skipped", { n: more })}</li>}
    </Fold>}
    {left.length > 0 && <Fold title={t("import.left_out")}>
      {left.map(([what, n]) => <li key={what} dir="auto">{t("import.left_out_line", { what: visible(what), n })}</li>)}
    </Fold>}
    {found.left_skills > 0 && <p class="meta">{tx("import.skills", { n: found.left_skills, command: <code>{visible(terminalCommand())}</code> })}</p>}
  </>;
}

const Fold = ({ title, children }: { title: string; children: ComponentChildren }) => <details>
  <summary>{title}</summary>
  <ul class="reasons">{children}</ul>
</details>;
