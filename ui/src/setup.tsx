// The first screen: the models that were found, a form to connect another, the tour and the practice model. Settings show the same offers.
import { useState } from "preact/hooks";
import { call, Problem } from "./api";
import { Field, prevented, Radios } from "./form";
import { Icon } from "./icon";
import { askBeforePractice } from "./models";
import { urlOf } from "./paths";
import { BareScreen } from "./signin";
import { enter, go, isOwner, modelName, setup, toast } from "./state";
import { t, tx } from "./text";
import type { Listed, Offer, Preset, Setup } from "./types";
import { visible } from "./words";

type Said = { text: string; hint: string } | null;
const sayProblem = (error: unknown): Said =>
  error instanceof Problem ? { text: error.message, hint: error.hint } : { text: t("error.unknown"), hint: t("error.try_again") };

function Refusal({ said }: { said: Said }) {
  return <div role="alert">{said !== null && <p class="refusal">{said.text} {said.hint !== "" && <span>{said.hint}</span>}</p>}</div>;
}

/** Runs the requests of a form. `busy` is the name of the one that runs, and `said` why the last one failed. */
function useRun() {
  const [busy, setBusy] = useState("");
  const [said, setSaid] = useState<Said>(null);
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
  return { busy, said, setSaid, run };
}

/** The first model leads to the first conversation; another one is added to the list in Settings. */
function connected(next: Setup): void {
  const first = setup.value?.model === null;
  setup.value = next;
  toast(t("model.now", { model: modelName(next.model) }));
  if (first) go("/");
}

export function WelcomeScreen() {
  const found = setup.value;
  if (found === null) return <main class="setup"><p class="status">{t("settings.looking")}</p></main>;
  return <BareScreen title={t("settings.welcome")}>
    <Offers />
    <p class="meta">
      {tx("settings.foot", {
        file: <code>{visible(found.file)}</code>,
        version: visible(found.version),
        licences: <a href={urlOf("/third-party.txt")} target="_blank" rel="noopener">{t("settings.licences")}</a>,
      })}
    </p>
  </BareScreen>;
}

/** What can be connected: the models that were found, any other server, the tour and the practice model. */
export function Offers() {
  const [form, setForm] = useState(false);
  const { busy, said, run } = useRun();
  const { offers, model } = setup.value!;
  const use = (offer: Offer) => {
    const connect = () => void run(offer.id, async () => connected(await call<Setup>("POST", "/api/setup/use", { offer: offer.id })));
    if (offer.kind === "practice") askBeforePractice(connect);
    else connect();
  };
  const tour = () => run("tour", async () => { enter(await call<Listed>("POST", "/api/tour")); });
  const first = model === null;
  const real = offers.filter((offer) => offer.kind !== "practice");
  const practice = offers.filter((offer) => offer.kind === "practice");
  const button = (offer: Offer, main: boolean) =>
    <OfferButton key={offer.id} title={offer.title} detail={offer.detail} main={main} busy={busy} name={offer.id} run={() => use(offer)} />;
  return <>
    <Refusal said={said} />
    <div class="offers">
      {real.map((offer, n) => button(offer, first && n === 0))}
      {(isOwner.value || first) && <button type="button" class={first && real.length === 0 && !form ? "offer main" : "offer"} aria-expanded={form} onClick={() => setForm(!form)}>
        <b>{t(real.length > 0 || !first ? "settings.connect_other" : "settings.connect")}</b>
        <span>{t("settings.connect_about")}</span>
      </button>}
      {form && <Connect />}
      <OfferButton title={t("settings.tour")} detail={t("settings.tour_about")} main={false} busy={busy} name="tour"
        run={() => void tour()} />
      {practice.map((offer) => button(offer, false))}
    </div>
  </>;
}

interface OfferProps { title: string; detail: string; main: boolean; busy: string; name: string; run: () => void }

function OfferButton({ title, detail, main, busy, name, run }: OfferProps) {
  return <button type="button" class={main ? "offer main" : "offer"} disabled={busy !== ""} onClick={run}>
    <b>{visible(title)}</b>
    <span>{busy === name ? t("settings.busy") : visible(detail)}</span>
  </button>;
}

const APIS = ["openai", "anthropic"] as const;
type Api = (typeof APIS)[number];

function Connect() {
  const presets = setup.value?.presets ?? [];
  const [preset, setPreset] = useState<Preset | undefined>(presets[0]);
  const [api, setApi] = useState<Api>(presets[0]?.api ?? "openai");
  const [url, setUrl] = useState(presets[0]?.url ?? "");
  const [key, setKey] = useState("");
  const [models, setModels] = useState<string[] | null>(null);
  const [name, setName] = useState("");
  const { busy, said, setSaid, run } = useRun();
  const where = { api, url: url.trim(), ...(key !== "" && { key }) };
  const load = () => run("load", async () => {
    const found = await call<{ models: string[] }>("POST", "/api/setup/models", where);
    setModels(found.models);
    setName(found.models[0] ?? "");
    if (found.models.length === 0) setSaid({ text: t("settings.no_models"), hint: t("settings.enter_name") });
  });
  const connect = () => run("connect", async () => connected(await call<Setup>("POST", "/api/setup/connect", { ...where, name: name.trim() })));
  const write = (next: string) => {
    setUrl(next);
    setModels(null);
  };
  const choose = (next: Preset | undefined) => {
    setPreset(next);
    setModels(null);
    setSaid(null);
    if (next === undefined) return setUrl("");
    setUrl(next.url);
    setApi(next.api);
  };
  return <form class="connect" aria-label={t("settings.connect")} onSubmit={prevented(models === null ? load : connect)}>
    <label>
      {t("settings.provider")}
      <select onChange={(event) => choose(presets.find(({ id }) => id === event.currentTarget.value))}>
        {presets.map(({ id, title }) => <option key={id} value={id} selected={id === preset?.id}>{visible(title)}</option>)}
        <option value="" selected={preset === undefined}>{t("settings.other_server")}</option>
      </select>
    </label>
    {preset === undefined &&
      <Radios legend={t("settings.type")} name="api" options={APIS.map((kind) => [kind, t(`settings.kind.${kind}`)])} value={api} choose={setApi} />}
    <Field label={t("settings.url")} type="url" required value={url} put={write} autocomplete="on" />
    <Field label={t("settings.api_key")} hint={t("settings.key_hint")} type="password" value={key} put={setKey} />
    {preset !== undefined && preset.keys !== "" && <a class="away" href={preset.keys} target="_blank" rel="noreferrer">
      {t("settings.key_page", { provider: visible(preset.title) })} <Icon name="external" />
    </a>}
    <Refusal said={said} />
    {models !== null && <ModelNames names={models} chosen={name} choose={setName} />}
    <div class="choices">
      <button type="button" class={models === null ? "main" : ""} disabled={busy !== ""} onClick={() => void load()}>{t("settings.load")}</button>
      {models !== null && <button type="submit" class="main" disabled={busy !== "" || name.trim() === ""}>{t("settings.connect_button")}</button>}
      {busy !== "" && <span class="meta">{t("settings.contacting")}</span>}
    </div>
  </form>;
}

/** The models of a server, with a filter. A name that the server does not list can be written. */
function ModelNames({ names, chosen, choose }: { names: string[]; chosen: string; choose: (name: string) => void }) {
  const [query, setQuery] = useState("");
  const words = query.toLowerCase().split(/\s+/);
  const matches = names.filter((name) => words.every((word) => name.toLowerCase().includes(word)));
  const written = query.trim();
  const shown = written === "" || names.includes(written) ? matches : [...matches, written];
  const filter = (next: string) => {
    setQuery(next);
    if (names.length === 0) choose(next.trim());
  };
  return <fieldset class="names">
    <legend>{t("settings.model")}</legend>
    <input
      type="search"
      aria-label={t(names.length === 0 ? "settings.model_name" : "settings.filter")}
      placeholder={t(names.length === 0 ? "settings.model_name" : "settings.filter")}
      value={query}
      onInput={(event) => filter(event.currentTarget.value)}
      onKeyDown={(event) => {
        // Enter takes the first match; it does not send the form with another one.
        if (event.key !== "Enter" || shown[0] === undefined || shown[0] === chosen) return;
        event.preventDefault();
        choose(shown[0]);
      }}
      autocomplete="off"
    />
    {names.length > 0 && <>
      <div class="list">
        {shown.map((name) => <label key={name} class="radio">
          <input type="radio" name="model" value={name} checked={name === chosen} onChange={() => choose(name)} />
          <span>{names.includes(name) ? visible(name) : t("settings.other_name", { name: visible(name) })}</span>
        </label>)}
      </div>
      <p class="meta" role="status">{t("settings.found", { n: matches.length })}</p>
    </>}
  </fieldset>;
}
