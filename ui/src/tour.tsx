// The tour: the server is killed in the middle of an answer, and nothing is lost.
import { useState } from "preact/hooks";
import { call } from "./api";
import { copy } from "./prose";
import { attempt, connection, current, plugged, pulled, setup, type View } from "./state";

export function PullThePlug({ view }: { view: View }) {
  if (current.value?.source !== "tour" || view.streaming.value === null || connection.value !== "live") return null;
  const pull = () =>
    attempt(async () => {
      pulled(view.id);
      await call("POST", "/api/tour/plug");
    });
  return (
    <div class="plug">
      <button type="button" class="danger" onClick={() => void pull()}>
        Pull the plug
      </button>
      <span>Kills the server process in the middle of this answer.</span>
    </div>
  );
}

/** After the answer survived: open it in a terminal, and verify the stored data. */
export function TourCard({ view }: { view: View }) {
  const [lines, setLines] = useState<{ ok: boolean; lines: string[] } | null>(null);
  const [busy, setBusy] = useState(false);
  if (current.value?.source !== "tour" || connection.value !== "live") return null;
  const survived = plugged.value === view.id || view.survived.value;
  if (!survived || current.value.running || !view.settled.value) return null;
  const command = `${setup.value?.terminal || "tenax"} -c ${view.id}`;
  const prove = async () => {
    setBusy(true);
    const found = await attempt(() => call<{ ok: boolean; lines: string[] }>("GET", "/api/doctor"));
    setBusy(false);
    if (found !== undefined) setLines(found);
  };
  return (
    <section class="card" aria-label="After the tour">
      <h2>Nothing was lost.</h2>
      <p>The server was killed, and the conversation is complete. Open it in a terminal:</p>
      <p class="command">
        <code>{command}</code>
        <button type="button" onClick={(event) => void copy(event.currentTarget, command)}>
          Copy
        </button>
      </p>
      <button type="button" class="main" disabled={busy} onClick={() => void prove()}>
        Verify data
      </button>
      {lines !== null && (
        <div role="status" class={lines.ok ? "proof" : "proof bad"}>
          <p>{lines.ok ? "All data verified." : "The verification found problems."}</p>
          <ul>
            {lines.lines.map((line, n) => (
              <li key={n}>{line}</li>
            ))}
          </ul>
        </div>
      )}
    </section>
  );
}
