// The tour: the server is killed in the middle of an answer, and nothing is lost.
import { useState } from "preact/hooks";
import { call } from "./api";
import { useBusy } from "./hooks";
import { CommandLine } from "./prose";
import { attempt, connection, current, plugged, pulled, setup, type View } from "./state";
import { t } from "./text";

export function PullThePlug({ view }: { view: View }) {
  if (current.value?.source !== "tour" || view.streaming.value === null || connection.value !== "live") return null;
  const pull = () => attempt(async () => {
    pulled(view.id);
    await call("POST", "/api/tour/plug");
  });
  return <div class="plug">
    <button type="button" class="danger" onClick={() => void pull()}>{t("tour.plug")}</button>
    <span>{t("tour.plug_about")}</span>
  </div>;
}

/** After the answer survived: open it in a terminal, and verify the stored data. */
export function TourCard({ view }: { view: View }) {
  const [lines, setLines] = useState<{ ok: boolean; lines: string[] } | null>(null);
  const [busy, run] = useBusy();
  if (current.value?.source !== "tour" || connection.value !== "live") return null;
  const survived = plugged.value === view.id || view.survived.value;
  if (!survived || current.value.running || !view.settled.value) return null;
  const command = `${setup.value?.terminal || "tenax"} -c ${view.id}`;
  const prove = async () => {
    const found = await run(() => call<{ ok: boolean; lines: string[] }>("GET", "/api/doctor"));
    if (found !== undefined) setLines(found);
  };
  return <section class="card" aria-label={t("tour.after")}>
    <h2>{t("tour.survived")}</h2>
    <p>{t("tour.open")}</p>
    <CommandLine command={command} />
    <button type="button" class="main" disabled={busy} onClick={() => void prove()}>{t("tour.verify")}</button>
    {lines !== null && <div role="status" class={lines.ok ? "proof" : "proof bad"}>
      <p>{t(lines.ok ? "tour.verified" : "tour.problems")}</p>
      <ul>{lines.lines.map((line, n) => <li key={n}>{line}</li>)}</ul>
    </div>}
  </section>;
}
