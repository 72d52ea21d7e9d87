// A tool call: one quiet line with its duration, its output while it runs, and the details when it is opened.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { Todo } from "./asked";
import { useClock } from "./hooks";
import { Icon, type IconName } from "./icon";
import { urlOf } from "./paths";
import { LONG, LongText } from "./prose";
import { follow, pathOf, showFile } from "./state";
import { t } from "./text";
import type { Row } from "./types";
import { durationOf, endingOf, parseArguments, targetWords, toolWords, visible, workOf, type Work } from "./words";

const ICONS: Record<Work, IconName> = {
  read: "view", change: "change", run: "run", find: "find", fetch: "web", delegate: "agent", remember: "memory", ask: "ask", todo: "todo", use: "tool",
};

export function Arguments({ row }: { row: Row }) {
  const args = parseArguments(row.arguments);
  const raw = row.arguments ?? "";
  if (args === null) return raw === "" ? null : <pre tabIndex={0}>{visible(raw)}</pre>;
  return <dl class="arguments">
    {Object.entries(args).map(([name, value]) => {
      const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
      return <div key={name}>
        <dt>{visible(name)}</dt>
        <dd>{text.length > LONG ? <LongText text={visible(text)} label={visible(name)} /> : <pre tabIndex={0}>{visible(text)}</pre>}</dd>
      </div>;
    })}
  </dl>;
}

/** The command of a call, if the call is one. */
export function commandOf(row: Row): string | null {
  const command = parseArguments(row.arguments)?.["command"];
  return typeof command === "string" ? command : null;
}

/** The file that a call reads or writes. */
function pathOfCall(row: Row): string | null {
  const path = parseArguments(row.arguments)?.["path"];
  return typeof path === "string" && path !== "" && ["read", "change"].includes(workOf(row.name ?? "")) ? path : null;
}

/** The name of a file. A click shows the file. */
export const OpensFile = ({ path, children }: { path: string; children: ComponentChildren }) =>
  <button type="button" class="opens" title={t("files.show")} onClick={() => showFile(path)}>{children}</button>;

/** The subject of a call. A click on the name of a file shows the file; for the keyboard, the details have a button. */
function Subject({ subject, path }: { subject: string; path: string | null }) {
  if (path === null) return <code class="subject">{subject}</code>;
  const open = (event: Event) => {
    event.preventDefault(); // the line of the call would open too
    showFile(path);
  };
  return <code class="subject opens" title={t("files.show")} onClick={open}>{subject}</code>;
}

/** The first line of a call. A card that shows the subject below leaves it out. */
export function Head({ row, bare = false }: { row: Row; bare?: boolean }) {
  const { verb, subject } = toolWords(row);
  const path = row.state === "asks" ? null : pathOfCall(row);
  return <>
    <span class="sign"><Icon name={ICONS[workOf(row.name ?? "")]} /></span>
    <span class="verb">{verb}{bare && ` ${t("tool.command")}`}</span> {!bare && <Subject subject={subject} path={path} />}
  </>;
}

/** The seconds since a time in microseconds, counted while it is not 0. */
export function useSeconds(since: number): number {
  const now = useClock(since === 0 ? 0 : 1000);
  return since === 0 ? 0 : Math.max(0, now / 1000 - since / 1e6);
}

function Ending({ row }: { row: Row }) {
  const running = row.state === "running";
  const since = useSeconds(running ? (row.started ?? 0) : 0);
  const code = endingOf(row)?.code ?? 0;
  const seconds = running ? since : (row.seconds ?? 0);
  if (code === 0 && seconds < 0.1) return null;
  return <span class="ending">{code !== 0 && <b>{t("tool.exit", { code })}</b>} {durationOf(seconds)}</span>;
}

/** Whether the first line says the whole command. */
const isShort = (row: Row): boolean => Object.keys(parseArguments(row.arguments) ?? {}).join() === "command" && /^.{0,80}$/.test(commandOf(row) ?? "");
const LIVE_CHARS = 4000;

/** The end of the output of a running command. */
function LiveOutput({ text }: { text: string }) {
  const box = useRef<HTMLPreElement>(null);
  useLayoutEffect(() => box.current?.scrollTo(0, box.current.scrollHeight), [text]);
  return <pre class="text output live" ref={box} tabIndex={0} role="region" aria-label={t("tool.output")}>{text.slice(-LIVE_CHARS)}</pre>;
}

export function ToolRow({ row }: { row: Row }) {
  if (row.name === "todo" && row.state !== "failed" && row.state !== "denied") return <Todo row={row} />;
  const ending = endingOf(row);
  const failed = row.state === "failed" || (ending !== null && ending.code !== 0);
  const running = row.state === "running";
  const text = row.text ?? "";
  const path = pathOfCall(row);
  return <>
    <details class={failed ? "tool failing" : "tool"} open={failed}>
      <summary><Head row={row} />{row.late === true && <span class="tag">{t("tool.late")}</span>}<Ending row={row} /></summary>
      {isShort(row) ? null : <Arguments row={row} />}
      {row.touches ? <p class="touches">{targetWords(row.touches)}</p> : null}
      {path !== null && <OpensFile path={path}>{t("files.show")}</OpensFile>}
      {text === "" || running ? null : text.length > LONG ? <LongText text={text} label={t("tool.output")} /> : <pre class="text output" tabIndex={0}>{text}</pre>}
    </details>
    {running && text !== "" && <LiveOutput text={text} />}
    {row.child && <p class={row.child_asks ? "child asks" : "child"} role="status">
      <a href={urlOf(pathOf(row.child))} onClick={follow}>{t(row.child_asks ? "subagent.asks" : "subagent.open")}</a>
    </p>}
  </>;
}
