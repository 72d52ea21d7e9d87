// A tool call that waits for the person: the change as a diff or the command, and the possible answers.
import { useState } from "preact/hooks";
import { useAnswer, useFocusOfCard, useFresh, useMeant } from "./asked";
import { call, conversationPath } from "./api";
import { DiffLines } from "./changes";
import { prevented } from "./form";
import { useLoaded } from "./hooks";
import { Icon } from "./icon";
import { attempt, type View } from "./state";
import { t } from "./text";
import { Arguments, commandOf, Head } from "./toolrow";
import type { Question, Row } from "./types";
import { targetWords, visible } from "./words";

/** Load the possible answers of a question. */
function useQuestion(view: View, row: Row): Question | null {
  const { found } = useLoaded(() => call<{ questions: Question[] }>("GET", conversationPath(view.id, "/approvals")), [view.id, row.id]);
  return found?.questions.find((candidate) => `${candidate.message}:${candidate.call}` === row.id) ?? null;
}

/** The change of a file as a diff, a command as one block, or all arguments. */
function Target({ row, question }: { row: Row; question: Question | null }) {
  const command = commandOf(row);
  const diff = question?.diff ?? "";
  if (diff !== "") return <div class="diff"><DiffLines diff={diff} /></div>;
  return command !== null ? <pre tabIndex={0}>{visible(command)}</pre> : <Arguments row={row} />;
}

export function Approval({ view, row }: { view: View; row: Row }) {
  const { busy, said, answer } = useAnswer(view, row);
  const question = useQuestion(view, row);
  const [open, setOpen] = useState<"" | "patterns" | "why">("");
  const [why, setWhy] = useState("");
  const meant = useMeant();
  const isFresh = useFresh();
  const meantLater = useMeant(question !== null);
  const patterns = question?.conversation ?? [];
  const always = new Set(question?.always);
  const card = useFocusOfCard();
  const toggle = (part: "patterns" | "why") => setOpen(open === part ? "" : part);
  const onKeyDown = (event: KeyboardEvent) => {
    if (busy || event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.target instanceof HTMLInputElement) return;
    const act = {
      "1": () => void answer("once"),
      "2": () => patterns.length > 0 && toggle("patterns"),
      "3": () => void answer("no"),
      Escape: () => void answer("no"),
    }[event.key];
    if (act === undefined || isFresh()) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  };
  return <section class="approval" aria-label={t("approval.title")} ref={card} tabIndex={-1} onKeyDown={onKeyDown}>
    <h2>
      <Head row={row} bare={commandOf(row) !== null} />
      <span class="badge"><Icon name="shield" />{question?.badge ? visible(question.badge) : targetWords(row.touches ?? "")}</span>
    </h2>
    <Target row={row} question={question} />
    <div class="choices">
      <button type="button" class="main" aria-keyshortcuts="1" disabled={busy} {...meant(() => void answer("once"))}>
        {t("approval.once")} <kbd aria-hidden="true">1</kbd>
      </button>
      {patterns.length > 0 &&
        <button type="button" aria-expanded={open === "patterns"} aria-keyshortcuts="2" disabled={busy} {...meantLater(() => toggle("patterns"))}>
          {t("approval.choose")} <kbd aria-hidden="true">2</kbd>
        </button>}
      <button type="button" aria-keyshortcuts="3 Escape" disabled={busy} {...meant(() => void answer("no"))}>
        {t("approval.no")} <kbd aria-hidden="true">3</kbd>
      </button>
      <button type="button" class="quiet" aria-expanded={open === "why"} disabled={busy} {...meant(() => toggle("why"))}>{t("approval.why")}</button>
    </div>
    {open === "why" && <form class="choices" onSubmit={prevented(() => answer("no", { why: why.trim() }))}>
      <input value={why} maxLength={2000} placeholder={t("approval.why_hint")} aria-label={t("approval.why_hint")} dir="auto" autofocus onInput={(event) => setWhy(event.currentTarget.value)} />
      <button type="submit" disabled={busy || why.trim() === ""}>{t("approval.no")}</button>
    </form>}
    {open === "patterns" && <div class="patterns">
      <p class="meta">{t(always.size > 0 ? "approval.always_text" : "approval.here_text")}</p>
      {patterns.map((pattern, n) => {
        const rule = visible(`${row.name} ${pattern}`);
        const note = question?.notes?.[n] ?? "";
        const allow = (how: "conversation" | "always") =>
          <button type="button" aria-label={t(`approval.${how}_named`, { pattern: note === "" ? rule : `${rule} (${note})` })} disabled={busy} {...meantLater(() => void answer(how, { pattern }))}>
            {t(`approval.${how}`)}
          </button>;
        return <div class="pattern" key={pattern}>
          <p><code>{rule}</code>{note !== "" && <small>{note}</small>}</p>
          <div class="choices">{allow("conversation")}{always.has(pattern) && allow("always")}</div>
        </div>;
      })}
    </div>}
    <AnswerAll view={view} row={row} />
    <p class="meta" role="status">{said}</p>
  </section>;
}

/** The first of several waiting calls of an answer can answer all of them. */
function AnswerAll({ view, row }: { view: View; row: Row }) {
  const meant = useMeant();
  const message = Number(row.id.split(":")[0]);
  const waiting = view.approvals.value.filter((id) => id.startsWith(`${message}:`));
  if (waiting.length < 2 || waiting[0] !== row.id) return null;
  const all = (answer: "once" | "no") => void attempt(() => call("POST", conversationPath(view.id, "/approvals/all"), { message, answer }));
  return <div class="choices all">
    <span class="meta">{t("approval.several", { n: waiting.length })}</span>
    <button type="button" {...meant(() => all("once"))}>{t("approval.all")}</button>
    <button type="button" {...meant(() => all("no"))}>{t("approval.none")}</button>
  </div>;
}
