// The memory page: list, search, edit and forget facts; the state of external memory providers.
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, factPath, sentenceOf } from "./api";
import { dialog } from "./dialogs";
import { Field, prevented, Radios } from "./form";
import { useBusy, useLook } from "./hooks";
import { urlOf } from "./paths";
import { Marked } from "./prose";
import { Download } from "./signed";
import { attempt, follow, isOwner, pathOf, titleOf, toast } from "./state";
import { locale, t, tx } from "./text";
import type { Fact, Provider } from "./types";
import { providerWords, shortTime, visible } from "./words";

const SHOWN = 100;
const LOOK_MS = 5000;
const TEXT_MAX = 1000;
const GROUPS = ["profile", "note"] as const;
const facts = signal<Fact[] | null>(null);
const providers = signal<Provider[]>([]);
const query = signal("");
const problem = signal("");

async function load(): Promise<void> {
  const wanted = query.value.trim();
  try {
    const found = await call<{ facts: Fact[] }>("GET", `/api/memory?words=${encodeURIComponent(wanted)}`);
    if (query.value.trim() !== wanted) return;
    facts.value = found.facts;
    problem.value = "";
  } catch (error) {
    if (query.value.trim() === wanted) problem.value = sentenceOf(error);
  }
}

let searching: ReturnType<typeof setTimeout> | undefined;
function search(words: string): void {
  query.value = words;
  clearTimeout(searching);
  searching = setTimeout(() => void load(), 200);
}

async function look(): Promise<void> {
  const found = await call<{ providers: Provider[] }>("GET", "/api/memory/status").catch(() => null);
  if (found !== null) providers.value = found.providers; // else keep the last result; the next poll may succeed
}

/** Make a change and reload, also after a refusal: somebody else may have changed the fact first. */
async function change<T>(work: () => Promise<T>): Promise<T | undefined> {
  const done = await attempt(work);
  await load();
  return done;
}

const undo = (fact: Fact, said: string) => ({
  label: t("common.undo"),
  run: () => void change(async () => {
    await call("POST", factPath(fact.id, "/undo"), { was: fact.version });
    toast(said);
  }),
});

const save = (fact: Fact, text: string, about: Fact["about"]) => change(async () => {
  const next = await call<Fact>("PATCH", factPath(fact.id), { was: fact.version, text, about });
  toast(t("memory.saved"), undo(next, t("memory.change_undone")));
  return next;
});

const forget = (fact: Fact) => change(async () => {
  const gone = await call<Fact>("DELETE", factPath(fact.id, `?was=${fact.version}`));
  toast(t("memory.forgotten"), undo(gone, t("memory.restored")));
});

const add = (text: string, about: Fact["about"]) => change(async () => {
  const { fact, known } = await call<{ fact: Fact; known: boolean }>("POST", "/api/memory", { text, about });
  if (known) toast(t("memory.known", { text: visible(fact.text) }));
  else toast(t("memory.remembered"), undo(fact, t("memory.removed_again")));
  return fact;
});

const take = (file: File) => change(async () => {
  type Loaded = { added: number; changed: number; known: number; refused: string[] };
  const { added, changed, known, refused } = await call<Loaded>("POST", "/api/memory/import", { markdown: await file.text() });
  toast(t("memory.imported", { added, changed, known }));
  if (refused.length > 0) dialog.value = { kind: "text", title: t("memory.not_imported"), text: refused.map(visible).join("\n") };
});

export function MemoryScreen() {
  const [adding, setAdding] = useState(false);
  useEffect(() => void (query.value = ""), []);
  useLook(() => Promise.all([load(), look()]));
  useLook(() => providers.value.length > 0 && document.visibilityState === "visible" && look(), [], LOOK_MS);
  const searched = query.value.trim() !== "";
  const empty = facts.value !== null && facts.value.length === 0;
  return <main class="setup" aria-labelledby="remembered">
    <div class="page memory">
      <h1 id="remembered">{t("memory.title")}</h1>
      <p class="lead">{t("memory.lead")}</p>
      <div class="choices tools">
        {(!empty || searched) && <input type="search" aria-label={t("memory.search")} placeholder={t("memory.search_hint")} value={query.value}
          onInput={(event) => search(event.currentTarget.value)} autocomplete="off" />}
        <button type="button" aria-expanded={adding} onClick={() => setAdding(!adding)}>{t("common.add")}</button>
        {(!empty || searched) && <Download class="button" path="/api/memory/export" name="tenax-memory.md">{t("memory.export")}</Download>}
        <Import />
      </div>
      {adding && <Write text="" about="note" save={add} close={() => setAdding(false)} />}
      <div role="status">
        {problem.value !== "" && <p class="refusal">{problem.value}</p>}
        {facts.value === null && problem.value === "" && <p class="status">{t("memory.loading")}</p>}
        {empty && searched && <p class="status">{t("memory.no_results")}</p>}
      </div>
      {empty && !searched && <section class="card" aria-label={t("memory.empty")}><h2>{t("memory.empty_title")}</h2><HowItFills /></section>}
      {GROUPS.map((about) =>
        <Group key={about} title={t(`memory.${about}`)} detail={t(`memory.${about}.about`)} members={(facts.value ?? []).filter((fact) => fact.about === about)} />)}
      <Providers />
      {facts.value !== null && !empty && <details class="fold how"><summary>{t("memory.how")}</summary><div><HowItFills /></div></details>}
    </div>
  </main>;
}

function HowItFills() {
  return <><p>{t("memory.how_text")}</p>{isOwner.value && <p><a href={urlOf("/settings/memory")} onClick={follow}>{t("memory.review_off")}</a></p>}</>;
}

function Group({ title, detail, members }: { title: string; detail: string; members: Fact[] }) {
  const [shown, setShown] = useState(SHOWN);
  if (members.length === 0) return null;
  return <section class="facts" aria-label={title}>
    <h2>{title} <span class="meta">{detail}</span></h2>
    <ul>{members.slice(0, shown).map((fact) => <Item key={fact.id} fact={fact} />)}</ul>
    {members.length > shown &&
      <button type="button" class="quiet" onClick={() => setShown(shown + 5 * SHOWN)}>{t("memory.more", { n: members.length })}</button>}
  </section>;
}

function Item({ fact }: { fact: Fact }) {
  const [seen, setSeen] = useState<Fact | null>(null);
  const close = () => {
    setSeen(null);
    // It may be in the other group now.
    requestAnimationFrame(() => document.querySelector<HTMLElement>(`[data-fact="${CSS.escape(fact.id)}"] button`)?.focus());
  };
  if (seen !== null) return <li data-fact={fact.id}>
    <div role="alert">{fact.text !== seen.text && <p class="refusal">{t("memory.changed_elsewhere", { text: visible(fact.text) })}</p>}</div>
    <Write text={seen.text} about={seen.about} save={(text, about) => save(fact, text, about)} close={close} />
  </li>;
  return <li data-fact={fact.id}>
    <p class="text" dir="auto"><Marked text={visible(fact.text)} words={query.value} /></p>
    <div class="about">
      <Source fact={fact} />
      <button type="button" class="quiet" aria-label={t("memory.edit", { text: visible(fact.text) })} onClick={() => setSeen(fact)}>
        {t("common.edit")}
      </button>
      <button type="button" class="quiet" aria-label={t("memory.forget_named", { text: visible(fact.text) })} onClick={(event) => forgetHere(event.currentTarget, fact)}>
        {t("memory.forget")}
      </button>
    </div>
  </li>;
}

/** Forget a fact. Its button disappears, so move the keyboard focus to the next fact. */
function forgetHere(button: HTMLElement, fact: Fact): void {
  const item = button.closest("li");
  const near = (item?.nextElementSibling ?? item?.previousElementSibling)?.querySelector<HTMLElement>("button");
  const next = near ?? document.querySelector<HTMLElement>(".tools button");
  void forget(fact).then(() => { if (!button.isConnected || document.activeElement === document.body) next?.focus(); });
}

function Source({ fact }: { fact: Fact }) {
  const at = new Date(fact.at);
  const time = <time dateTime={fact.at} title={at.toLocaleString(locale())}>{shortTime(at)}</time>;
  const conversation = fact.conversation !== null &&
    <a href={urlOf(`${pathOf(fact.conversation)}#user-${fact.seq ?? 0}`)} onClick={follow} dir="auto">{visible(titleOf({ title: fact.title }))}</a>;
  return <p class="meta">
    {tx(conversation ? "memory.source_from" : "memory.source", { who: t(`memory.by.${fact.by}`), time, conversation })}
    {fact.scope !== null && ` ${t("memory.source_there")}`}
  </p>;
}

interface WriteProps {
  text: string;
  about: Fact["about"];
  save: (text: string, about: Fact["about"]) => Promise<Fact | undefined>;
  close: () => void;
}

function Write({ save, close, ...given }: WriteProps) {
  const [text, setText] = useState(given.text);
  const [about, setAbout] = useState(given.about);
  const [busy, run] = useBusy();
  const form = useRef<HTMLFormElement>(null);
  useLayoutEffect(() => form.current?.querySelector("textarea")?.focus(), []);
  const done = async () => { if (!busy && text.trim() !== "" && (await run(() => save(text, about))) !== undefined) close(); };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (event.key === "Enter" && !event.isComposing && event.target instanceof HTMLTextAreaElement) prevented(done)(event);
  };
  return <form ref={form} class="connect write" onSubmit={prevented(done)} onKeyDown={onKeyDown}>
    <Field label={t("memory.what")} lines={2} maxLength={TEXT_MAX} value={text} put={setText} />
    <Radios legend={t("memory.category")} hidden name="about" options={GROUPS.map((group) => [group, t(`memory.${group}`)])} value={about} choose={setAbout} />
    <div class="choices">
      <button type="submit" class="main" disabled={busy || text.trim() === ""}>{t("common.save")}</button>
      <button type="button" onClick={close}>{t("common.cancel")}</button>
    </div>
  </form>;
}

function Import() {
  const input = useRef<HTMLInputElement>(null);
  const chosen = (target: HTMLInputElement) => {
    const file = target.files?.[0];
    target.value = ""; // the same file may be chosen again
    if (file !== undefined) void take(file);
  };
  return <>
    <button type="button" onClick={() => input.current?.click()}>{t("memory.import")}</button>
    <input ref={input} type="file" accept=".md,text/markdown,text/plain" hidden aria-label={t("memory.import_file")} onChange={(event) => chosen(event.currentTarget)} />
  </>;
}

function Providers() {
  if (providers.value.length === 0) return null;
  return <section class="facts" aria-label={t("memory.providers")}>
    <h2>{t("memory.providers")} <span class="meta">{t("memory.providers_about")}</span></h2>
    <ul>{providers.value.map((provider) => <ProviderItem key={provider.provider} provider={provider} />)}</ul>
  </section>;
}

function ProviderItem({ provider }: { provider: Provider }) {
  const [busy, run] = useBusy();
  const retry = () => run(async () => {
    const { retried } = await call<{ retried: number }>("POST", `/api/memory/providers/${encodeURIComponent(provider.provider)}/retry`);
    toast(retried === 0 ? t("memory.nothing_delivered") : t("memory.delivered", { n: retried }));
  }).then(look);
  return <li data-provider={provider.provider}>
    <p><strong>{visible(provider.provider)}</strong> {providerWords(provider)}</p>
    {provider.error !== "" && <p class="meta">{t("memory.last_error", { error: visible(provider.error) })}</p>}
    {provider.letters.length > 0 && <>
      <p class="meta">{t("memory.not_delivered")}</p>
      <ul class="letters">
        {provider.letters.map((letter) => <li key={`${letter.conversation}:${letter.seq}`} class="meta">
          <a href={urlOf(`${pathOf(letter.conversation)}#user-${letter.seq}`)} onClick={follow}>
            {t("memory.turn_of", { time: shortTime(new Date(letter.at / 1000)) })}
          </a>
          : {visible(letter.error)}
        </li>)}
      </ul>
      <button type="button" disabled={busy} onClick={() => void retry()}>{t("common.retry")}</button>
    </>}
  </li>;
}
