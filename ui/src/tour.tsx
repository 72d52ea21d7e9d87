// The tour: a server that is killed in the middle of an answer, and what is still there afterwards.
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
      <span>Kills the server with SIGKILL, in the middle of this answer.</span>
    </div>
  );
}

/** After an answer survived: look at it from elsewhere, and prove that it is all there. */
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
      <h2>It held on.</h2>
      <p>The server was killed, and nothing you saw is gone. The same conversation in a terminal:</p>
      <p class="command">
        <code>{command}</code>
        <button type="button" onClick={(event) => void copy(event.currentTarget, command)}>
          Copy
        </button>
      </p>
      <button type="button" class="main" disabled={busy} onClick={() => void prove()}>
        Prove the store
      </button>
      {lines !== null && (
        <div role="status" class={lines.ok ? "proof" : "proof bad"}>
          <p>{lines.ok ? "The store proves itself." : "The store has a fault."}</p>
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
