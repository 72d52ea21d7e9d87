// A question that the model asks the person, and the model's to-do list.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, conversationPath, sentenceOf } from "./api";
import { keepWords, wordsOf } from "./drafts";
import { prevented } from "./form";
import { Icon } from "./icon";
import { running, toast, type View } from "./state";
import { t } from "./text";
import type { Row } from "./types";
import { parseArguments, visible } from "./words";

/** For how long after a card appears a click is ignored: it was probably meant for what was there before. */
const FRESH_MS = 700;
/** The button on which the present series of clicks began, unless a click of the series has answered. */
let begunOn: EventTarget | null = null;
const beginSeries = ({ detail }: MouseEvent) => { if (detail === 1) begunOn = null; };
window.addEventListener("click", beginSeries, true); // in the capture phase: before the button gets the click

/**
 * A pointer answers with a click, but not in the first moments after the buttons are shown. The later clicks of a series (a double
 * click) answer only on the button where the series began, and once. A key answers at once.
 */
export function useMeant(shown = true) {
  const [fresh, setFresh] = useState(true);
  useEffect(() => {
    if (!shown) return;
    const timer = setTimeout(() => setFresh(false), FRESH_MS);
    return () => clearTimeout(timer);
  }, [shown]);
  return (act: () => void) => ({
    "aria-disabled": fresh || undefined, // and not `disabled`: that would take the focus, and the keys
    onClick: ({ detail, currentTarget }: MouseEvent) => {
      if (detail === 1) begunOn = currentTarget;
      if (detail !== 0 && (fresh || begunOn !== currentTarget)) return;
      begunOn = null;
      act();
    },
  });
}

/** Whether a card has just appeared. Keys that arrive then were probably meant for something else. */
export function useFresh(): () => boolean {
  const shown = useRef(performance.now());
  return () => performance.now() - shown.current < FRESH_MS;
}

const composer = () => document.querySelector<HTMLTextAreaElement>(".composer textarea");

/**
 * Give a new card the focus, so that its keys work, unless the person is writing or works elsewhere. The card itself gets it, not a
 * button, so that Enter answers nothing. When the card goes, the composer gets the focus back.
 */
export function useFocusOfCard() {
  const card = useRef<HTMLElement>(null);
  useEffect(() => {
    const element = card.current;
    const box = composer();
    const idle = document.activeElement === document.body || (document.activeElement === box && box?.value === "");
    if (idle) element?.focus({ preventScroll: true });
    return () => {
      const lost = document.activeElement === document.body || element?.contains(document.activeElement) === true;
      if (lost && matchMedia("(pointer: fine)").matches) requestAnimationFrame(() => document.activeElement === document.body && composer()?.focus());
    };
  }, []);
  return card;
}

/** Answer the question of a row, and report the result. A problem that the card can no longer show becomes a toast. */
export function useAnswer(view: View, row: Row) {
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState("");
  const gone = useRef(false);
  const problem = useRef("");
  useEffect(
    () => () => {
      gone.current = true;
      if (problem.current !== "") toast(problem.current, undefined, true);
    },
    [],
  );
  const answer = async (given: string, more: { pattern?: string; words?: string; why?: string } = {}) => {
    setBusy(true);
    problem.current = "";
    const colon = row.id.indexOf(":");
    const body = { message: Number(row.id.slice(0, colon)), call: row.id.slice(colon + 1), answer: given, ...more };
    try {
      await call("POST", conversationPath(view.id, "/approvals"), body);
      setSaid(t("question.sent"));
    } catch (error) {
      problem.current = sentenceOf(error);
      if (gone.current) toast(problem.current, undefined, true);
      setSaid(problem.current);
      setBusy(false);
    }
  };
  return { busy, said, answer };
}

const entries = (row: Row, name: string): unknown[] => {
  const found = parseArguments(row.arguments)?.[name];
  return Array.isArray(found) ? found : [];
};

export function Asked({ view, row }: { view: View; row: Row }) {
  const { busy, said, answer } = useAnswer(view, row);
  const meant = useMeant();
  const place = `${view.id}:${row.id}`;
  const [words, setWords] = useState(() => wordsOf(place));
  const write = (next: string) => {
    setWords(next);
    keepWords(place, next);
  };
  const say = (given: string, said?: string) => {
    keepWords(place, "");
    void answer(given, said === undefined ? {} : { words: said });
  };
  return <section class="approval asked" aria-label={t("question.title")}>
    <h2 dir="auto">{visible(row.touches ?? "")}</h2>
    <div class="choices">
      {entries(row, "choices").map((choice) =>
        <button key={String(choice)} type="button" dir="auto" disabled={busy} {...meant(() => say("once", String(choice)))}>
          {visible(String(choice))}
        </button>)}
    </div>
    <form class="choices" onSubmit={prevented(() => words.trim() !== "" && say("once", words))}>
      <input value={words} maxLength={4000} placeholder={t("question.own_hint")} aria-label={t("question.own")} dir="auto" onInput={(event) => write(event.currentTarget.value)} />
      <button type="submit" disabled={busy || words.trim() === ""}>{t("question.answer")}</button>
      <button type="button" class="quiet" disabled={busy} {...meant(() => say("no"))}>{t("question.skip")}</button>
    </form>
    <p class="meta" role="status">{said}</p>
  </section>;
}

type Entry = { text?: unknown; state?: unknown };
const isDone = (entry: Entry): boolean => entry?.state === "done";

const TodoEntries = ({ all }: { all: Entry[] }) => <ul class="todo">
  {all.map((entry, n) => <li key={n} data-done={entry?.state}>
    <span class="hidden">{t(isDone(entry) ? "todo.done" : entry?.state === "doing" ? "todo.doing" : "todo.open")}</span>
    <span dir="auto">{visible(String(entry?.text ?? ""))}</span>
  </li>)}
</ul>;

const TodoSummary = ({ all }: { all: Entry[] }) => <summary>
  <span class="sign"><Icon name="todo" /></span>
  <span class="verb">{t("todo.title")}</span> {t("todo.count", { done: all.filter(isDone).length, all: all.length })}
</summary>;

/** An update of the to-do list, folded. The present list stands above the composer. */
export function Todo({ row }: { row: Row }) {
  const all = entries(row, "entries") as Entry[];
  return <details class="tool"><TodoSummary all={all} /><TodoEntries all={all} /></details>;
}

/** The present to-do list, while something is left to do. */
export function LivingTodo({ view }: { view: View }) {
  const id = view.todo.value;
  const all = id === undefined ? [] : (entries(view.row(id).value, "entries") as Entry[]);
  if (!running.value || all.every(isDone)) return null;
  return <details class="tool living" open><TodoSummary all={all} /><TodoEntries all={all} /></details>;
}
