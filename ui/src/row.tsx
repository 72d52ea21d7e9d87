// One row of the transcript: a message, an answer, a tool call, or a status of the turn.
import { useEffect, useState } from "preact/hooks";
import { call, conversationPath, factPath } from "./api";
import { AnswerActions, EditBox, MessageActions, retryRow } from "./actions";
import { Asked, Todo, useAnswer, useFocusOfCard, useFresh, useMeant } from "./asked";
import { Parts } from "./attach";
import { FilesRow } from "./changes";
import { fill } from "./composer";
import { chipOf, filesOf } from "./drafts";
import { memo } from "./memo";
import { discard, retry, submit, type Outgoing } from "./outbox";
import { LONG, LongText, PlainText, Prose } from "./prose";
import { attempt, follow, pathOf, running, type View } from "./state";
import type { Question, Row } from "./types";
import { endingOf, MARKERS, NOTED, parseArguments, shortTime, targetWords, toolWords, visible } from "./words";

export const RowView = memo(({ view, id, hit }: { view: View; id: string; hit: boolean }) => {
  const row = view.row(id).value;
  if (row === undefined) return null;
  const state = row.state ?? "";
  const attempts = view.attempts.value.get(id);
  if (attempts !== undefined)
    return attempts.length === 0 ? null : (
      <li class="row" data-row={row.id} data-kind={row.kind} data-state="earlier">
        <Attempts view={view} ids={attempts} />
      </li>
    );
  return (
    <li class={hit ? "row hit" : "row"} data-row={row.id} data-kind={row.kind} data-state={state} data-late={row.late}>
      {row.erased === true ? <p class="status">Erased.</p> : <Body view={view} row={row} />}
    </li>
  );
});

function Body({ view, row }: { view: View; row: Row }) {
  switch (row.kind) {
    case "user":
      return <UserRow view={view} row={row} />;
    case "assistant":
      return <AssistantRow view={view} row={row} />;
    case "tool":
      return <ToolRow view={view} row={row} />;
    case "marker":
      return <MarkerRow view={view} row={row} />;
    case "memory":
      return <MemoryRow row={row} />;
    case "files":
      return <FilesRow view={view} row={row} />;
    case "summary":
      return <Folded title="Summary of earlier messages" text={row.text ?? ""} />;
    case "system":
      return <Folded title="Instructions" text={row.text ?? ""} />;
    default:
      return row.state === "retrying" ? (
        <RetryRow row={row} />
      ) : (
        <p class="status">
          <span class="text">{row.text}</span>
        </p>
      );
  }
}

/** A failed call that is tried again: why, which attempt it was, and a countdown to the next one. */
function RetryRow({ row }: { row: Row }) {
  const until = row.at / 1000 + (row.wait ?? 0) * 1000;
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 500);
    return () => clearInterval(timer);
  }, []);
  const seconds = Math.ceil((until - now) / 1000);
  return (
    <p class="status">
      <span class="text" role="status">
        {row.text}
      </span>
      {running.value && (
        <span class="countdown">
          {seconds > 0 ? `Next try in ${seconds} s` : "Trying again…"}
          {row.attempt ? ` (attempt ${row.attempt} failed)` : ""}
        </span>
      )}
    </p>
  );
}

const timeOf = (row: Row): Date => new Date(row.at / 1000);

function Time({ row }: { row: Row }) {
  const time = timeOf(row);
  return (
    <time dateTime={time.toISOString()} title={time.toLocaleString()}>
      {shortTime(time)}
    </time>
  );
}

const WAITS: Record<string, string> = {
  queued: "Queued. Sends when the current answer is done.",
  steering: "Will be read at the next step, or after this answer if it has no further step.",
};

function UserRow({ view, row }: { view: View; row: Row }) {
  const waits = WAITS[row.state ?? ""];
  if (view.editing.value === row.id) return <EditBox view={view} row={row} close={() => (view.editing.value = null)} />;
  return (
    <div class="mine">
      <h2 class="hidden">{row.author === "system" ? "Tenax" : row.author ? visible(row.author) : "You"}</h2>
      <div class="bubble">
        <PlainText text={row.text ?? ""} />
        <Parts conversation={view.id} parts={row.parts} />
      </div>
      <p class="meta">
        {waits !== undefined ? <strong class="tag">{waits}</strong> : <MessageActions view={view} row={row} edit={() => (view.editing.value = row.id)} />} <Time row={row} />
      </p>
    </div>
  );
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
  return (
    <li class="row" data-row={`outbox:${message.key}`} data-kind="user" data-state={sent ? "sent" : "unsent"}>
      <div class="mine">
        <h2 class="hidden">You</h2>
        <div class="bubble unsent">
          <PlainText text={message.text} />
          <Parts conversation={null} parts={message.attachments} />
        </div>
        {message.refused !== undefined ? (
          <p class="meta bad">
            Not sent. {message.refused}{" "}
            <button type="button" class="quiet" onClick={() => retry(message.key)}>
              Try again
            </button>
            <button type="button" class="quiet" onClick={() => edit(message)}>
              Edit
            </button>
            <button type="button" class="quiet" onClick={() => discard(message.key)}>
              Discard
            </button>
          </p>
        ) : (
          <p class="meta">
            {!sent && <span class="note">Not sent yet. Will send when the server responds.</span>}
          </p>
        )}
      </div>
    </li>
  );
}

export function Labelled({ row }: { row: Row }) {
  if (row.model === "practice")
    return (
      <p class="label">
        Practice model (135 M parameters, runs on this machine). It makes things up and sees only your last message.{" "}
        <a href="/setup" onClick={follow}>
          Connect a real model
        </a>
      </p>
    );
  if (row.model === "tour") return <p class="label">This answer is scripted for the tour; everything else is real.</p>;
  return null;
}

function AssistantRow({ view, row }: { view: View; row: Row }) {
  const text = row.text ?? "";
  const streaming = row.state === "streaming";
  const answer = (
    <>
      {row.thought ? <Folded title="Reasoning" text={row.thought} /> : null}
      {streaming && text === "" ? <Dots /> : <Prose text={text} growing={streaming} />}
      <Parts conversation={view.id} parts={row.parts} />
      {row.state === "cut" && <p class="status">This answer was cut off here.</p>}
      {row.state === "full" && <FullLine view={view} row={row} />}
      {!streaming && <Labelled row={row} />}
    </>
  );
  if (row.state === "earlier")
    return (
      <details class="fold">
        <summary>Earlier attempt (cut off)</summary>
        {answer}
      </details>
    );
  return (
    <article aria-busy={streaming}>
      <h2 class="hidden">Answer</h2>
      {answer}
      {!streaming && text !== "" && <Actions view={view} row={row} />}
    </article>
  );
}

/** An answer that reached the maximum length. The person can let the model continue. */
function FullLine({ view, row }: { view: View; row: Row }) {
  const last = view.order.value.at(-1) === row.id;
  const goOn = () => submit({ conversation: view.id, leaving: null, text: "Continue.", attachments: [], how: "queue", after: Number(row.id) });
  return (
    <p class="status">
      Reached the maximum length.{" "}
      {last && (
        <button type="button" class="quiet" onClick={goOn}>
          Continue
        </button>
      )}
    </p>
  );
}

/** Attempts at an answer that were cut off, in one line. */
function Attempts({ view, ids }: { view: View; ids: string[] }) {
  return (
    <details class="fold">
      <summary>{ids.length === 1 ? "An attempt was cut off" : `${ids.length} attempts were cut off`}</summary>
      {ids.map((id) => (
        <Prose key={id} text={view.row(id).value.text ?? ""} growing={false} />
      ))}
    </details>
  );
}

export const Dots = () => (
  <p class="dots" aria-label="Waiting for the answer">
    <span />
    <span />
    <span />
  </p>
);

function Actions({ view, row }: { view: View; row: Row }) {
  return (
    <div class="actions">
      <AnswerActions view={view} row={row} />
      <span class="meta">
        {row.model && row.model !== "practice" && row.model !== "tour" ? `${visible(row.model)} · ` : ""}
        <Time row={row} />
      </span>
    </div>
  );
}

function Folded({ title, text }: { title: string; text: string }) {
  return (
    <details class="fold">
      <summary>{title}</summary>
      <PlainText text={text} />
    </details>
  );
}

// -- tools ---------------------------------------------------------------------------------------------------------

function Arguments({ row }: { row: Row }) {
  const args = parseArguments(row.arguments);
  const raw = row.arguments ?? "";
  if (args === null) return raw === "" ? null : <pre tabIndex={0}>{visible(raw)}</pre>;
  return (
    <dl class="arguments">
      {Object.entries(args).map(([name, value]) => {
        const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
        return (
          <div key={name}>
            <dt>{visible(name)}</dt>
            <dd>
              {text.length > LONG ? <LongText text={visible(text)} label={visible(name)} /> : <pre tabIndex={0}>{visible(text)}</pre>}
            </dd>
          </div>
        );
      })}
    </dl>
  );
}

function Head({ row }: { row: Row }) {
  const { verb, subject } = toolWords(row);
  return (
    <>
      <span class="sign" aria-hidden="true" />
      <span class="verb">{verb}</span> <code class="subject">{subject}</code>
    </>
  );
}

function ToolRow({ view, row }: { view: View; row: Row }) {
  if (row.state === "asks") return row.name === "ask" ? <Asked view={view} row={row} /> : <Approval view={view} row={row} />;
  if (row.name === "todo" && row.state !== "failed" && row.state !== "denied") return <Todo view={view} row={row} />;
  const ending = endingOf(row);
  const failed = row.state === "failed" || (ending !== null && ending.code !== 0);
  const card = (
    <details class={failed ? "tool failing" : "tool"} open={failed}>
      <summary>
        <Head row={row} />
        {row.late === true && <span class="tag">arrived late</span>}
        {ending !== null && (
          <span class="ending">
            {ending.code !== 0 && <b>exit {ending.code}</b>} {ending.seconds} s
          </span>
        )}
      </summary>
      <Arguments row={row} />
      {row.touches ? <p class="touches">{targetWords(row.touches)}</p> : null}
      {row.text ? (
        row.text.length > LONG ? (
          <LongText text={row.text} label="Tool output" />
        ) : (
          <pre class="text output" tabIndex={0}>
            {row.text}
          </pre>
        )
      ) : null}
    </details>
  );
  if (!row.child) return card;
  return (
    <>
      {card}
      <p class={row.child_asks ? "child asks" : "child"} role="status">
        <a href={pathOf(row.child)} onClick={follow}>
          {row.child_asks ? "The sub-agent needs your answer. Open its conversation" : "Open the sub-agent’s conversation"}
        </a>
      </p>
    </>
  );
}

const ANSWERS = [
  ["once", "Allow once", "1"],
  ["no", "Deny", "3"],
] as const;

function Approval({ view, row }: { view: View; row: Row }) {
  const { busy, said, answer } = useAnswer(view, row);
  const [question, setQuestion] = useState<Question | null>(null);
  const [open, setOpen] = useState(false);
  const meant = useMeant();
  const isFresh = useFresh();
  const meantLater = useMeant(question !== null);
  useEffect(() => {
    let there = true;
    const take = (found: { questions: Question[] }) => {
      if (there) setQuestion(found.questions.find((candidate) => `${candidate.message}:${candidate.call}` === row.id) ?? null);
    };
    call<{ questions: Question[] }>("GET", conversationPath(view.id, "/approvals")).then(take, () => undefined);
    return () => {
      there = false;
    };
  }, [view.id, row.id]);
  const here = question?.conversation ?? [];
  const always = question?.always ?? []; // empty, or the same patterns as `here`
  const card = useFocusOfCard();
  const onKeyDown = (event: KeyboardEvent) => {
    if (busy || event.repeat || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {
      "1": () => void answer("once"),
      "2": () => always.length > 0 && setOpen(true),
      "3": () => void answer("no"),
      Escape: () => void answer("no"),
    }[event.key];
    if (act === undefined || isFresh()) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  };
  const noted = (n: number) => (question?.notes?.[n] ? ` (${question.notes[n]})` : "");
  return (
    <section class="approval" aria-label="Approval needed" ref={card} tabIndex={-1} onKeyDown={onKeyDown}>
      <h2>
        <Head row={row} />
      </h2>
      <p class="touches">{targetWords(row.touches ?? "")}</p>
      <Arguments row={row} />
      <div class="choices">
        {ANSWERS.map(([given, label, key]) => (
          <button key={given} type="button" class={given === "once" ? "main" : ""} aria-keyshortcuts={key} disabled={busy} {...meant(() => void answer(given))}>
            {label}
          </button>
        ))}
        {always.length > 0 && (
          <button type="button" aria-expanded={open} aria-keyshortcuts="2" disabled={busy} {...meantLater(() => setOpen(!open))}>
            Always…
          </button>
        )}
        <span class="meta keys">Keys: 1 allow once{always.length > 0 ? ", 2 always" : ""}, 3 or Esc deny</span>
      </div>
      {here.length > 0 && (
        <div class="patterns">
          {here.map((pattern, n) => (
            <button key={pattern} type="button" disabled={busy} {...meantLater(() => void answer("conversation", { pattern }))}>
              Allow in this conversation: <code>{visible(`${row.name} ${pattern}`)}</code>
              {noted(n)}
            </button>
          ))}
        </div>
      )}
      {open && (
        <div class="patterns always">
          <p>Always allow, in all conversations. You can remove this in Settings → Rules. In a pattern, * matches anything and [*] matches a star.</p>
          {always.map((pattern, n) => (
            <button key={pattern} type="button" disabled={busy} {...meantLater(() => void answer("always", { pattern }))}>
              Always allow <code>{visible(`${row.name} ${pattern}`)}</code>
              {noted(n)}
            </button>
          ))}
        </div>
      )}
      <p class="meta" role="status">
        {said}
      </p>
    </section>
  );
}

// -- the turn ------------------------------------------------------------------------------------------------------

/** A fact that was remembered, changed or forgotten in this conversation. */
function MemoryRow({ row }: { row: Row }) {
  const [undone, setUndone] = useState(false);
  const undo = () =>
    attempt(async () => {
      await call("POST", factPath(row.fact ?? "", "/undo"), { was: row.version });
      setUndone(true);
    });
  const taken = undone || row.state === "undone";
  return (
    <p class="status memory">
      <span>
        <a href="/memory" onClick={follow}>
          {NOTED[row.action ?? ""] ?? "Memory:"}
        </a>{" "}
        <span class="text" dir="auto">
          {visible(row.text ?? "")}
        </span>
      </span>
      {taken ? (
        <span role="status">Undone.</span>
      ) : (
        <button type="button" class="quiet" onClick={() => void undo()}>
          Undo
        </button>
      )}
    </p>
  );
}

function MarkerRow({ view, row }: { view: View; row: Row }) {
  const state = row.state ?? "";
  const said = MARKERS[state] ?? "Interrupted.";
  const last = view.order.value.at(-1) === row.id;
  const canGoOn = last && (state === "recovered" || state === "neutral");
  const resume = () => attempt(() => call("POST", conversationPath(view.id, "/resume")));
  if (state === "failed")
    return (
      <section class="failed" aria-label="Error">
        <h2>{said}</h2>
        {row.text && <p class="text">{row.text}</p>}
        {last && (
          <p class="choices">
            <button type="button" class="main" disabled={running.value} onClick={() => retryRow(view, row)}>
              Try again
            </button>
            <a class="button" href="/setup" onClick={follow}>
              Switch model
            </a>
          </p>
        )}
      </section>
    );
  return (
    <div class="status marker">
      <p>
        <span>{said}</span> {row.text && row.text !== said && state !== "resumed" ? <span class="text why">{row.text}</span> : null}
      </p>
      {canGoOn && (
        <button type="button" class="quiet" onClick={() => void resume()}>
          Continue
        </button>
      )}
    </div>
  );
}
