// One row of the transcript: a message, an answer, a tool call, or a status of the turn.
import { useState } from "preact/hooks";
import { call, conversationPath, factPath } from "./api";
import { AnswerActions, EditBox, MessageActions, retryRow } from "./actions";
import { Approval } from "./approval";
import { Asked } from "./asked";
import { Parts } from "./attach";
import { FilesRow } from "./changes";
import { fill } from "./composer";
import { chipOf, filesOf } from "./drafts";
import { useClock } from "./hooks";
import { Icon } from "./icon";
import { memo } from "./memo";
import { RetryWith } from "./models";
import { discard, retry, submit, type Outgoing } from "./outbox";
import { urlOf } from "./paths";
import { PlainText, Prose } from "./prose";
import { attempt, follow, running, type View } from "./state";
import { locale, t, type TextKey } from "./text";
import { ToolRow, useSeconds } from "./toolrow";
import type { Row } from "./types";
import { durationOf, isFailed, markerWords, notedWords, shortTime, visible, workSeconds, workWords } from "./words";

export const RowView = memo(({ view, id, hit }: { view: View; id: string; hit: boolean }) => {
  const row = view.row(id).value;
  if (row === undefined) return null;
  const state = row.state ?? "";
  const attempts = view.attempts.value.get(id);
  if (attempts !== undefined) return attempts.length === 0 ? null :
    <li class="row" data-row={row.id} data-kind={row.kind} data-state="earlier"><Attempts view={view} ids={attempts} /></li>;
  return <li class={hit ? "row hit" : "row"} data-row={row.id} data-kind={row.kind} data-state={state} data-late={row.late}>
    {row.erased === true ? <p class="status">{t("row.erased")}</p> : <Body view={view} row={row} />}
  </li>;
});

/** The work of a finished turn, folded into one line: "Read 3 files, ran 2 commands · 12 s". */
export function WorkRow({ view, ids }: { view: View; ids: string[] }) {
  const open = view.unfolded.value.has(ids[0]!);
  const rows = ids.map((id) => view.row(id).value).filter((row) => row !== undefined);
  const failed = rows.filter(isFailed).length;
  return <li class="row" data-kind="work" data-key={`work:${ids[0]}`}>
    <details class="work" open={open} onToggle={(event) => view.unfold(ids[0]!, event.currentTarget.open)}>
      <summary>
        <Icon name="forward" /><span>{workWords(rows)}</span>
        {failed > 0 && <b class="bad">{t("work.failed", { n: failed })}</b>}
        <span class="ending">{durationOf(workSeconds(rows))}</span>
      </summary>
      {open && <ol class="rows">{ids.map((id) => <RowView key={id} view={view} id={id} hit={false} />)}</ol>}
    </details>
  </li>;
}

function Body({ view, row }: { view: View; row: Row }) {
  switch (row.kind) {
    case "user": return <UserRow view={view} row={row} />;
    case "assistant": return <AssistantRow view={view} row={row} />;
    case "tool":
      if (row.state !== "asks") return <ToolRow row={row} />;
      return row.name === "ask" ? <Asked view={view} row={row} /> : <Approval view={view} row={row} />;
    case "marker": return <MarkerRow view={view} row={row} />;
    case "memory": return <MemoryRow row={row} />;
    case "files": return <FilesRow view={view} row={row} />;
    case "summary": return <Folded title={t("row.summary")} text={row.text ?? ""} />;
    case "system": return <Folded title={t("row.instructions")} text={row.text ?? ""} />;
    default: return row.state === "retrying" ? <RetryRow row={row} /> : <p class="status"><span class="text">{row.text}</span></p>;
  }
}

/** A failed call that is tried again: why, which attempt it was, and a countdown to the next one. */
function RetryRow({ row }: { row: Row }) {
  const until = row.at / 1000 + (row.wait ?? 0) * 1000;
  const seconds = Math.ceil((until - useClock(500)) / 1000);
  return <p class="status">
    <span class="text" role="status">{row.text}</span>
    {running.value && <span class="countdown">
      {seconds > 0 ? t("row.next_try", { time: durationOf(seconds) }) : t("row.trying")}
      {row.attempt ? ` ${t("row.attempt_failed", { n: row.attempt })}` : ""}
    </span>}
  </p>;
}

const timeOf = (row: Row): Date => new Date(row.at / 1000);

function Time({ row }: { row: Row }) {
  const time = timeOf(row);
  return <time dateTime={time.toISOString()} title={time.toLocaleString(locale())}>{shortTime(time)}</time>;
}

const SLOW_SECONDS = 3;
const WAITS: Record<string, TextKey> = { queued: "row.queued", steering: "row.steering" };

function UserRow({ view, row }: { view: View; row: Row }) {
  const waits = WAITS[row.state ?? ""];
  if (view.editing.value === row.id) return <EditBox view={view} row={row} close={() => (view.editing.value = null)} />;
  return <div class="mine">
    <h2 class="hidden">{row.author === "system" ? "Tenax" : row.author ? visible(row.author) : t("common.you")}</h2>
    <div class="bubble"><PlainText text={row.text ?? ""} /><Parts conversation={view.id} parts={row.parts} /></div>
    <p class="meta">
      {waits !== undefined && <strong class="tag">{t(waits)}</strong>} <MessageActions view={view} row={row} edit={() => (view.editing.value = row.id)} /> <Time row={row} />
    </p>
  </div>;
}

/** Put a refused message back into the composer. */
function edit({ key, conversation, text, attachments = [] }: Outgoing): void {
  const files = filesOf(conversation);
  files.put([...files.chips.value, ...attachments.map(chipOf)]);
  discard(key);
  fill(text, true);
}

/** A message that the server has not confirmed yet. */
export function UnsentRow({ message }: { message: Outgoing }) {
  const sent = message.seq !== undefined;
  return <li class="row" data-row={`outbox:${message.key}`} data-kind="user" data-state={sent ? "sent" : "unsent"}>
    <div class="mine">
      <h2 class="hidden">{t("common.you")}</h2>
      <div class="bubble unsent"><PlainText text={message.text} /><Parts conversation={null} parts={message.attachments} /></div>
      {message.refused !== undefined ? <p class="meta bad">
        {t("unsent.refused", { reason: message.refused })}{" "}
        <button type="button" class="quiet" onClick={() => retry(message.key)}>{t("common.try_again")}</button>
        <button type="button" class="quiet" onClick={() => edit(message)}>{t("common.edit")}</button>
        <button type="button" class="quiet" onClick={() => discard(message.key)}>{t("unsent.discard")}</button>
      </p> : <p class="meta">{!sent && <span class="note">{t("unsent.waits")}</span>}</p>}
    </div>
  </li>;
}

function Labelled({ row }: { row: Row }) {
  if (row.model === "practice")
    return <p class="label">{t("answer.practice")}{" "}<a href={urlOf("/settings/models")} onClick={follow}>{t("answer.connect")}</a></p>;
  if (row.model === "tour") return <p class="label">{t("answer.scripted")}</p>;
  return null;
}

function AssistantRow({ view, row }: { view: View; row: Row }) {
  const text = row.text ?? "";
  const streaming = row.state === "streaming";
  const answer = <>
    {row.thought ? <Thought row={row} /> : null}
    {streaming && text === "" ? row.thought ? null : <Dots since={row.started ?? row.at} /> : <Prose text={text} growing={streaming} />}
    <Parts conversation={view.id} parts={row.parts} />
    {row.state === "cut" && <p class="status">{t("answer.cut")}</p>}
    {row.state === "full" && <FullLine view={view} row={row} />}
    {!streaming && <Labelled row={row} />}
  </>;
  if (row.state === "earlier") return <details class="fold"><summary>{t("answer.earlier")}</summary>{answer}</details>;
  return <article aria-busy={streaming}>
    <h2 class="hidden">{t("answer.title")}</h2>
    {answer}
    {!streaming && text !== "" && <Actions view={view} row={row} />}
  </article>;
}

/** The reasoning: a growing box while the model thinks, and one line afterwards. */
function Thought({ row }: { row: Row }) {
  const thinks = row.state === "streaming" && (row.text ?? "") === "";
  const since = useSeconds(thinks ? (row.started ?? row.at) : 0);
  if (thinks) return <section class="thought" aria-label={t("answer.reasoning")}>
    <p class="meta">{t("answer.thinking", { seconds: durationOf(since) })}</p>
    <div class="box text" tabIndex={0} role="region" aria-label={t("answer.reasoning")}><Prose text={row.thought ?? ""} growing /></div>
  </section>;
  const took = row.thought_seconds ?? 0;
  const title = took >= 0.1 ? t("answer.thought", { seconds: durationOf(took) }) : t("answer.reasoning"); // and not "for 0 s"
  return <details class="fold"><summary>{title}</summary><Prose text={row.thought ?? ""} growing={false} /></details>;
}

/** An answer that reached the maximum length. The person can let the model continue. */
function FullLine({ view, row }: { view: View; row: Row }) {
  const last = view.order.value.at(-1) === row.id;
  const goOn = () => submit({ conversation: view.id, leaving: null, text: t("answer.continue_message"), attachments: [], how: "queue", after: Number(row.id) });
  return <p class="status">{t("answer.full")}{" "}{last && <button type="button" class="quiet" onClick={goOn}>{t("common.continue")}</button>}</p>;
}

/** Attempts at an answer that were cut off, in one line. */
function Attempts({ view, ids }: { view: View; ids: string[] }) {
  return <details class="fold">
    <summary>{t("answer.attempts", { n: ids.length })}</summary>
    {ids.map((id) => <Prose key={id} text={view.row(id).value.text ?? ""} growing={false} />)}
  </details>;
}

/** Shown until an answer begins. A model that takes long gets a clock. */
export function Dots({ since }: { since: number }) {
  const seconds = useSeconds(since);
  return <p class="dots" aria-label={t("answer.waiting")}><span /><span /><span />{seconds >= SLOW_SECONDS && <small class="meta">{durationOf(seconds)}</small>}</p>;
}

function Actions({ view, row }: { view: View; row: Row }) {
  return <div class="actions">
    <AnswerActions view={view} row={row} />
    <span class="meta">{row.model && row.model !== "practice" && row.model !== "tour" ? `${visible(row.model)} · ` : ""}<Time row={row} /></span>
  </div>;
}

function Folded({ title, text }: { title: string; text: string }) {
  return <details class="fold"><summary>{title}</summary><PlainText text={text} /></details>;
}

// -- the turn ------------------------------------------------------------------------------------------------------

/** A fact that was remembered, changed or forgotten in this conversation. */
function MemoryRow({ row }: { row: Row }) {
  const [undone, setUndone] = useState(false);
  const undo = () => attempt(async () => {
    await call("POST", factPath(row.fact ?? "", "/undo"), { was: row.version });
    setUndone(true);
  });
  const taken = undone || row.state === "undone";
  return <p class="status memory">
    <span>
      <a href={urlOf("/memory")} onClick={follow}>{notedWords(row.action ?? "")}</a>{" "}
      <span class="text" dir="auto">{visible(row.text ?? "")}</span>
    </span>
    {taken ? <span role="status">{t("memory.undone")}</span> : <button type="button" class="quiet" onClick={() => void undo()}>{t("common.undo")}</button>}
  </p>;
}

function MarkerRow({ view, row }: { view: View; row: Row }) {
  const state = row.state ?? "";
  const said = markerWords(state);
  const last = view.order.value.at(-1) === row.id;
  const canGoOn = last && (state === "recovered" || state === "neutral");
  const resume = () => attempt(() => call("POST", conversationPath(view.id, "/resume")));
  if (state === "failed") return <section class="failed" aria-label={t("marker.error")}>
    <h2>{said}</h2>
    {row.text && <p class="text">{row.text}</p>}
    {last && <p class="choices">
      <button type="button" class="main" disabled={running.value} onClick={() => retryRow(view, row)}>{t("common.try_again")}</button>
      {!running.value && <RetryWith button={t("marker.switch")} kind="" retry={(label) => retryRow(view, row, label)} />}
      <a class="button" href={urlOf("/settings/models")} onClick={follow}>{t("marker.settings")}</a>
    </p>}
  </section>;
  return <div class="status marker">
    <p><span>{said}</span> {row.text && row.text !== said && state !== "resumed" ? <span class="text why">{row.text}</span> : null}</p>
    {canGoOn && <button type="button" class="quiet" onClick={() => void resume()}>{t("common.continue")}</button>}
  </div>;
}
