// What is asked by itself, and when: listed, added and removed.
import { useEffect, useState } from "preact/hooks";
import { call, newKey } from "./api";
import { attempt, follow, pathOf, titleOf, toast } from "./state";
import { visible } from "./words";

type Schedule = { id: string; conversation: string; title: string | null; words: string; when: string; zone: string; next: string; waits: string };
type Scheduled = { schedules: Schedule[] };
const LOOK_MS = 5000;
const CLOCK = { weekday: "short", day: "numeric", month: "short", hour: "numeric", minute: "2-digit" } as const;

export function Schedules() {
  const [found, setFound] = useState<Schedule[] | null>(null);
  const [when, setWhen] = useState("");
  const [words, setWords] = useState("");
  const [key, setKey] = useState(newKey);
  const change = (work: () => Promise<Scheduled>, done: string) =>
    attempt(async () => {
      setFound((await work()).schedules);
      toast(done);
      return true;
    });
  useEffect(() => {
    const look = () =>
      void call<Scheduled>("GET", "/api/schedules").then(
        ({ schedules }) => setFound(schedules),
        () => undefined, // what was known stays; it is asked again soon
      );
    look();
    const looking = setInterval(look, LOOK_MS);
    return () => clearInterval(looking);
  }, []);
  const remove = async (each: Schedule) => {
    await change(() => call<Scheduled>("DELETE", `/api/schedules/${encodeURIComponent(each.id)}`), "Removed.");
    document.querySelector<HTMLElement>(".schedules li button, .schedules summary")?.focus();
  };
  const add = async (event: Event) => {
    event.preventDefault();
    const { timeZone: zone } = Intl.DateTimeFormat().resolvedOptions();
    if (!(await change(() => call<Scheduled>("POST", "/api/schedules", { when, words, zone }, { "Idempotency-Key": key }), "It will be asked by itself."))) return;
    setKey(newKey());
    setWhen("");
    setWords("");
  };
  if (found === null) return null;
  return (
    <section class="facts schedules" aria-label="Schedules">
      <h2>
        Schedules <span class="meta">What is asked by itself, while Tenax runs. What was missed runs once, late.</span>
      </h2>
      {found.length === 0 && <p class="status">There are none yet. Say “every weekday at 8”, here or in a conversation.</p>}
      <ul>
        {found.map((each) => (
          <li key={each.id}>
            <p>{visible(each.words)}</p>
            <div class="about">
              <span class="meta">
                {each.when} ({visible(each.zone)}), next <time dateTime={each.next}>{new Date(each.next).toLocaleString(undefined, CLOCK)}</time>, in{" "}
                <a href={pathOf(each.conversation)} onClick={follow}>
                  {visible(titleOf(each))}
                </a>
                {each.waits !== "" && <strong> {visible(each.waits)}</strong>}
              </span>
              <button type="button" class="quiet" aria-label={`Remove: ${visible(each.words)}`} onClick={() => void remove(each)}>
                Remove
              </button>
            </div>
          </li>
        ))}
      </ul>
      <details class="fold">
        <summary>Add a schedule</summary>
        <form class="connect" aria-label="Add a schedule" onSubmit={(event) => void add(event)}>
          <label>
            When <span class="meta">(every weekday at 8, every 15 minutes, tomorrow at 9, on 2026-12-24 at 9:00)</span>
            <input required maxLength={200} value={when} onInput={(event) => setWhen(event.currentTarget.value)} autocomplete="off" />
          </label>
          <label>
            What to ask then
            <textarea required maxLength={4000} rows={3} value={words} onInput={(event) => setWords(event.currentTarget.value)} />
          </label>
          <div class="choices">
            <button type="submit" class="main">
              Add
            </button>
          </div>
        </form>
      </details>
    </section>
  );
}
