// Scheduled prompts: list, add and remove.
import { useState } from "preact/hooks";
import { newKey } from "../api";
import { Field } from "../form";
import { urlOf } from "../paths";
import { follow, pathOf, titleOf } from "../state";
import { locale, t, tx } from "../text";
import { visible } from "../words";
import { AddForm, RemoveButton, useEntries } from "./entries";

type Schedule = { id: string; conversation: string; title: string | null; words: string; when: string; zone: string; next: string; waits: string };
const LOOK_MS = 5000;
const CLOCK = { weekday: "short", day: "numeric", month: "short", hour: "numeric", minute: "2-digit" } as const;

export function Schedules() {
  const { found, change } = useEntries<Schedule>("/api/schedules", "schedules", LOOK_MS);
  const [when, setWhen] = useState("");
  const [words, setWords] = useState("");
  const [key, setKey] = useState(newKey);
  const remove = (schedule: Schedule) => change("DELETE", `/${encodeURIComponent(schedule.id)}`, t("schedules.removed"));
  const add = async () => {
    const { timeZone: zone } = Intl.DateTimeFormat().resolvedOptions();
    if (!(await change("POST", "", t("schedules.added"), { when, words, zone }, { "Idempotency-Key": key }))) return;
    setKey(newKey());
    setWhen("");
    setWords("");
  };
  if (found === null) return null;
  return <section class="facts schedules" aria-label={t("schedules.title")}>
    {found.length === 0 && <p class="status">{t("schedules.none")}</p>}
    <ul>
      {found.map((schedule) => <li key={schedule.id}>
        <p>{visible(schedule.words)}</p>
        <div class="about">
          <span class="meta">
            {tx("schedules.next", {
              when: schedule.when,
              zone: visible(schedule.zone),
              time: <time dateTime={schedule.next}>{new Date(schedule.next).toLocaleString(locale(), CLOCK)}</time>,
              conversation: <a href={urlOf(pathOf(schedule.conversation))} onClick={follow}>{visible(titleOf(schedule))}</a>,
            })}
            {schedule.waits !== "" && <strong> {visible(schedule.waits)}</strong>}
          </span>
          <RemoveButton label={t("common.remove_named", { name: visible(schedule.words) })} act={() => remove(schedule)} next=".schedules li button, .schedules summary" />
        </div>
      </li>)}
    </ul>
    <AddForm title={t("schedules.add")} add={add}>
      <Field label={t("schedules.when")} hint={t("schedules.when_hint")} required maxLength={200} value={when} put={setWhen} />
      <Field label={t("schedules.prompt")} required maxLength={4000} lines={3} value={words} put={setWords} />
    </AddForm>
  </section>;
}
