// Settings, and the first screen: the models that were found, a form to connect another, the tour and the practice model.
import { useState } from "preact/hooks";
import { call, Problem } from "./api";
import { Devices } from "./devices";
import mark from "./mark.svg";
import { McpServers } from "./mcp";
import { askBeforePractice, ModelList } from "./models";
import { Rules } from "./rules";
import { Schedules } from "./schedules";
import { go, modelName, pathOf, putListed, setup, toast } from "./state";
import type { Listed, Offer, Setup } from "./types";
import { visible } from "./words";

type Said = { text: string; hint: string } | null;
const sayProblem = (error: unknown): Said =>
  error instanceof Problem ? { text: error.message, hint: error.hint } : { text: "Something went wrong.", hint: "Try again." };

function Refusal({ said }: { said: Said }) {
  return (
    <div role="alert">
      {said !== null && (
        <p class="refusal">
          {said.text} {said.hint !== "" && <span>{said.hint}</span>}
        </p>
      )}
    </div>
  );
}

function connected(next: Setup): void {
  setup.value = next;
  toast(`Now using ${modelName(next.model)}.`);
  go("/");
}

export function SetupScreen() {
  const [form, setForm] = useState(false);
  const [busy, setBusy] = useState("");
  const [said, setSaid] = useState<Said>(null);
  const found = setup.value;
  if (found === null)
    return (
      <main class="setup">
        <p class="status">Looking for models…</p>
      </main>
    );
  const run = async (name: string, work: () => Promise<void>) => {
    setBusy(name);
    setSaid(null);
    try {
      await work();
    } catch (error) {
      setSaid(sayProblem(error));
    } finally {
      setBusy("");
    }
  };
  const use = (offer: Offer) => {
    const connect = () => void run(offer.id, async () => connected(await call<Setup>("POST", "/api/setup/use", { offer: offer.id })));
    if (offer.kind === "practice") askBeforePractice(connect);
    else connect();
  };
  const tour = () =>
    run("tour", async () => {
      const listed = await call<Listed>("POST", "/api/tour");
      putListed(listed);
      go(pathOf(listed.id));
    });
  const first = found.model === null;
  const real = found.offers.filter((offer) => offer.kind !== "practice");
  const practice = found.offers.filter((offer) => offer.kind === "practice");
  const button = (offer: Offer, main: boolean) => (
    <OfferButton key={offer.id} title={offer.title} detail={offer.detail} main={main} busy={busy} name={offer.id} run={() => use(offer)} />
  );
  return (
    <main class="setup" aria-labelledby="greeting">
      <div class="page">
        <img src={mark} alt="" width="56" height="56" />
        <h1 id="greeting">
          {first ? "Welcome to Tenax. Connect a model to start." : "Models"}
        </h1>
        {found.model !== null && (
          <p class="lead">
            Active model: <strong>{visible(modelName(found.model))}</strong>
            {found.model.url ? <> ({visible(found.model.url)})</> : null}
          </p>
        )}
        <Refusal said={said} />
        {!first && <ModelList />}
        <div class="offers">
          {real.map((offer, n) => button(offer, first && n === 0))}
          <button type="button" class="offer" aria-expanded={form} onClick={() => setForm(!form)}>
            <b>{real.length > 0 || !first ? "Connect another model" : "Connect a model"}</b>
            <span>Any OpenAI-compatible server, or Anthropic</span>
          </button>
          {form && <Connect />}
          <OfferButton
            title="Take the tour (no key needed)"
            detail="2-minute demo: we crash the server mid-answer and nothing is lost"
            main={first && real.length === 0}
            busy={busy}
            name="tour"
            run={() => void tour()}
          />
          {practice.map((offer) => button(offer, false))}
        </div>
        {!first && found.file !== "" && <Rules />}
        {!first && found.file !== "" && <McpServers />}
        {!first && <Schedules />}
        {!first && <Devices />}
        <p class="meta">
          Settings file: <code>{visible(found.file)}</code> · Version {visible(found.version)} ·{" "}
          <a href="/third-party.txt" target="_blank" rel="noopener">
            Open-source licences
          </a>
        </p>
      </div>
    </main>
  );
}

interface OfferProps {
  title: string;
  detail: string;
  main: boolean;
  busy: string;
  name: string;
  run: () => void;
}

function OfferButton({ title, detail, main, busy, name, run }: OfferProps) {
  return (
    <button type="button" class={main ? "offer main" : "offer"} disabled={busy !== ""} onClick={run}>
      <b>{visible(title)}</b>
      <span>{busy === name ? "One moment…" : visible(detail)}</span>
    </button>
  );
}

const KINDS = {
  openai: { label: "OpenAI-compatible", url: "https://api.openai.com/v1" },
  anthropic: { label: "Anthropic", url: "https://api.anthropic.com" },
};

function Connect() {
  const [api, setApi] = useState<keyof typeof KINDS>("openai");
  const [url, setUrl] = useState(KINDS.openai.url);
  const [key, setKey] = useState("");
  const [models, setModels] = useState<string[] | null>(null);
  const [name, setName] = useState("");
  const [busy, setBusy] = useState(false);
  const [said, setSaid] = useState<Said>(null);
  const where = { api, url: url.trim(), ...(key !== "" && { key }) };
  const run = (work: () => Promise<void>) => async (event: Event) => {
    event.preventDefault();
    setBusy(true);
    setSaid(null);
    try {
      await work();
    } catch (error) {
      setSaid(sayProblem(error));
    } finally {
      setBusy(false);
    }
  };
  const load = run(async () => {
    const found = await call<{ models: string[] }>("POST", "/api/setup/models", where);
    setModels(found.models);
    setName(found.models[0] ?? "");
    if (found.models.length === 0) setSaid({ text: "The server lists no models.", hint: "Enter the name of the model." });
  });
  const connect = run(async () => connected(await call<Setup>("POST", "/api/setup/connect", { ...where, name: name.trim() })));
  const choose = (next: keyof typeof KINDS) => {
    if (url === KINDS[api].url) setUrl(KINDS[next].url);
    setApi(next);
    setModels(null);
  };
  return (
    <form class="connect" aria-label="Connect a model" onSubmit={(event) => void (models === null ? load(event) : connect(event))}>
      <fieldset>
        <legend>Type of server</legend>
        {(Object.keys(KINDS) as (keyof typeof KINDS)[]).map((kind) => (
          <label class="radio" key={kind}>
            <input type="radio" name="api" checked={api === kind} onChange={() => choose(kind)} />
            {KINDS[kind].label}
          </label>
        ))}
      </fieldset>
      <label>
        URL
        <input type="url" required value={url} onInput={(event) => setUrl(event.currentTarget.value)} />
      </label>
      <label>
        API key <span class="meta">(leave empty if the server needs none)</span>
        <input type="password" autocomplete="off" value={key} onInput={(event) => setKey(event.currentTarget.value)} />
      </label>
      <Refusal said={said} />
      {models !== null && (
        <label>
          Model
          <input list="models" required value={name} onInput={(event) => setName(event.currentTarget.value)} />
          <datalist id="models">
            {models.map((model) => (
              <option key={model} value={model} />
            ))}
          </datalist>
          <span class="meta">{models.length === 1 ? "1 model." : `${models.length} models. Clear the field to see them all.`}</span>
        </label>
      )}
      <div class="choices">
        <button type="button" class={models === null ? "main" : ""} disabled={busy} onClick={(event) => void load(event)}>
          Load models
        </button>
        {models !== null && (
          <button type="submit" class="main" disabled={busy || name.trim() === ""}>
            Connect
          </button>
        )}
        {busy && <span class="meta">Contacting the server…</span>}
      </div>
    </form>
  );
}
