// A question that the model asks the person, and the model's to-do list.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, conversationPath, Problem } from "./api";
import { keepWords, wordsOf } from "./drafts";
import { toast, type View } from "./state";
import type { Row } from "./types";
import { parseArguments, visible } from "./words";

/** For how long after a card appears a click is ignored: it was probably meant for what was there before. */
const FRESH_MS = 700;

/** The button on which the present series of clicks began, unless a click of the series has answered. */
let begunOn: EventTarget | null = null;
const beginSeries = ({ detail }: MouseEvent) => {
  if (detail === 1) begunOn = null;
};
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

const composer = () => document.querySelector<HTMLTextAreaElement>("textarea[aria-label=Message]");

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
  const answer = async (given: string, more: { pattern?: string; words?: string } = {}) => {
    setBusy(true);
    problem.current = "";
    const colon = row.id.indexOf(":");
    const body = { message: Number(row.id.slice(0, colon)), call: row.id.slice(colon + 1), answer: given, ...more };
    try {
      await call("POST", conversationPath(view.id, "/approvals"), body);
      setSaid("Sent.");
    } catch (error) {
      problem.current = error instanceof Problem ? error.sentence : "Something went wrong.";
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
  const send = (event: Event) => {
    event.preventDefault();
    if (words.trim() !== "") say("once", words);
  };
  return (
    <section class="approval asked" aria-label="A question for you">
      <h2 dir="auto">{visible(row.touches ?? "")}</h2>
      <div class="choices">
        {entries(row, "choices").map((choice) => (
          <button key={String(choice)} type="button" dir="auto" disabled={busy} {...meant(() => say("once", String(choice)))}>
            {visible(String(choice))}
          </button>
        ))}
      </div>
      <form class="choices" onSubmit={send}>
        <input value={words} maxLength={4000} placeholder="Or type your own answer" aria-label="Your own answer" dir="auto" onInput={(event) => write(event.currentTarget.value)} />
        <button type="submit" disabled={busy || words.trim() === ""}>
          Answer
        </button>
        <button type="button" class="quiet" disabled={busy} {...meant(() => say("no"))}>
          Skip
        </button>
      </form>
      <p class="meta" role="status">
        {said}
      </p>
    </section>
  );
}

/** A to-do list. The newest one is open; earlier ones are folded. */
export function Todo({ view, row }: { view: View; row: Row }) {
  const all = entries(row, "entries") as { text?: unknown; state?: unknown }[];
  return (
    <details class="tool" open={view.todo.value === row.id}>
      <summary>
        <span class="sign" aria-hidden="true" />
        <span class="verb">To do:</span> {all.filter((entry) => entry?.state === "done").length} of {all.length} done
      </summary>
      <ul class="todo">
        {all.map((entry, n) => (
          <li key={n} data-done={entry?.state}>
            <span class="hidden">{entry?.state === "done" ? "Done: " : entry?.state === "doing" ? "In progress: " : "Open: "}</span>
            <span dir="auto">{visible(String(entry?.text ?? ""))}</span>
          </li>
        ))}
      </ul>
    </details>
  );
}
