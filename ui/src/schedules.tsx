// Scheduled prompts: list, add and remove.
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
        () => undefined, // keep the last result; the next poll may succeed
      );
    look();
    const looking = setInterval(look, LOOK_MS);
    return () => clearInterval(looking);
  }, []);
  const remove = async (schedule: Schedule) => {
    await change(() => call<Scheduled>("DELETE", `/api/schedules/${encodeURIComponent(schedule.id)}`), "Schedule removed.");
    document.querySelector<HTMLElement>(".schedules li button, .schedules summary")?.focus();
  };
  const add = async (event: Event) => {
    event.preventDefault();
    const { timeZone: zone } = Intl.DateTimeFormat().resolvedOptions();
    if (!(await change(() => call<Scheduled>("POST", "/api/schedules", { when, words, zone }, { "Idempotency-Key": key }), "Schedule added."))) return;
    setKey(newKey());
    setWhen("");
    setWords("");
  };
  if (found === null) return null;
  return (
    <section class="facts schedules" aria-label="Schedules">
      <h2>
        Schedules <span class="meta">Prompts that run automatically while Tenax runs. A missed run happens once at the next start.</span>
      </h2>
      {found.length === 0 && <p class="status">No schedules yet. Add one here, or say “every weekday at 8” in a conversation.</p>}
      <ul>
        {found.map((schedule) => (
          <li key={schedule.id}>
            <p>{visible(schedule.words)}</p>
            <div class="about">
              <span class="meta">
                {schedule.when} ({visible(schedule.zone)}), next <time dateTime={schedule.next}>{new Date(schedule.next).toLocaleString(undefined, CLOCK)}</time>, in{" "}
                <a href={pathOf(schedule.conversation)} onClick={follow}>
                  {visible(titleOf(schedule))}
                </a>
                {schedule.waits !== "" && <strong> {visible(schedule.waits)}</strong>}
              </span>
              <button type="button" class="quiet" aria-label={`Remove: ${visible(schedule.words)}`} onClick={() => void remove(schedule)}>
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
            Prompt
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
