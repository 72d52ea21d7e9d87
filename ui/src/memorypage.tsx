// The memory page: list, search, edit and forget facts; the state of external memory providers.
import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { call, factPath, Problem } from "./api";
import { dialog } from "./dialogs";
import { Download } from "./signed";
import { attempt, follow, pathOf, setup, titleOf, toast } from "./state";
import type { Fact, Provider } from "./types";
import { BY, marked, providerWords, shortTime, visible } from "./words";

const SHOWN = 100;
const LOOK_MS = 5000;
const TEXT_MAX = 1000;
const GROUPS = [
  ["profile", "Profile", "About you"],
  ["note", "Notes", "Everything else"],
] as const;

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
    if (query.value.trim() === wanted) problem.value = error instanceof Problem ? error.sentence : "Something went wrong.";
  }
}

let searching: ReturnType<typeof setTimeout> | undefined;
function search(words: string): void {
  query.value = words;
  clearTimeout(searching);
  searching = setTimeout(() => void load(), 200);
}

async function look(): Promise<void> {
  try {
    providers.value = (await call<{ providers: Provider[] }>("GET", "/api/memory/status")).providers;
  } catch {
    // Keep the last result; the next poll may succeed.
  }
}

/** Make a change and reload, also after a refusal: somebody else may have changed the fact first. */
async function change<T>(work: () => Promise<T>): Promise<T | undefined> {
  const done = await attempt(work);
  await load();
  return done;
}

const undo = (fact: Fact, said: string) => ({
  label: "Undo",
  run: () =>
    void change(async () => {
      await call("POST", factPath(fact.id, "/undo"), { was: fact.version });
      toast(said);
    }),
});

const save = (fact: Fact, text: string, about: Fact["about"]) =>
  change(async () => {
    const next = await call<Fact>("PATCH", factPath(fact.id), { was: fact.version, text, about });
    toast("Saved.", undo(next, "Change undone."));
    return next;
  });

const forget = (fact: Fact) =>
  change(async () => {
    const gone = await call<Fact>("DELETE", factPath(fact.id, `?was=${fact.version}`));
    toast("Forgotten.", undo(gone, "Restored."));
  });

const add = (text: string, about: Fact["about"]) =>
  change(async () => {
    const { fact, known } = await call<{ fact: Fact; known: boolean }>("POST", "/api/memory", { text, about });
    if (known) toast(`Already remembered: ${visible(fact.text)}`);
    else toast("Remembered.", undo(fact, "Removed again."));
    return fact;
  });

const take = (file: File) =>
  change(async () => {
    type Loaded = { added: number; changed: number; known: number; refused: string[] };
    const { added, changed, known, refused } = await call<Loaded>("POST", "/api/memory/import", { markdown: await file.text() });
    toast(`${added} added, ${changed} changed, ${known} already known.`);
    if (refused.length > 0) dialog.value = { kind: "text", title: "Not imported", text: refused.map(visible).join("\n") };
  });

export function MemoryScreen() {
  const [adding, setAdding] = useState(false);
  useEffect(() => {
    const all = () => {
      void load();
      void look();
    };
    query.value = "";
    all();
    const timer = setInterval(() => providers.value.length > 0 && document.visibilityState === "visible" && void look(), LOOK_MS);
    window.addEventListener("focus", all);
    return () => {
      clearInterval(timer);
      window.removeEventListener("focus", all);
    };
  }, []);
  const searched = query.value.trim() !== "";
  const empty = facts.value !== null && facts.value.length === 0;
  return (
    <main class="setup" aria-labelledby="remembered">
      <div class="page memory">
        <h1 id="remembered">Memory</h1>
        <p class="lead">What Tenax remembers across conversations. You can see and change all of it here.</p>
        <div class="choices tools">
          {(!empty || searched) && (
            <input
              type="search"
              aria-label="Search memory"
              placeholder="Search"
              value={query.value}
              onInput={(event) => search(event.currentTarget.value)}
              autocomplete="off"
            />
          )}
          <button type="button" aria-expanded={adding} onClick={() => setAdding(!adding)}>
            Add
          </button>
          {(!empty || searched) && (
            <Download class="button" path="/api/memory/export" name="tenax-memory.md">
              Export
            </Download>
          )}
          <Import />
        </div>
        {adding && (
          <Write
            label="What to remember"
            text=""
            about="note"
            save={async (text, about) => (await add(text, about)) !== undefined}
            close={() => setAdding(false)}
          />
        )}
        <div role="status">
          {problem.value !== "" && <p class="refusal">{problem.value}</p>}
          {facts.value === null && problem.value === "" && <p class="status">Loading…</p>}
          {empty && searched && <p class="status">No results.</p>}
        </div>
        {empty && !searched && (
          <section class="card" aria-label="Nothing yet">
            <h2>Nothing remembered yet</h2>
            <HowItFills />
          </section>
        )}
        {GROUPS.map(([about, title, detail]) => (
          <Group key={about} title={title} detail={detail} members={(facts.value ?? []).filter((fact) => fact.about === about)} />
        ))}
        <Providers />
        {facts.value !== null && !empty && (
          <details class="fold how">
            <summary>How memory works</summary>
            <div>
              <HowItFills />
            </div>
          </details>
        )}
      </div>
    </main>
  );
}

function HowItFills() {
  const file = setup.value?.file;
  return (
    <>
      <p>
        Say “remember that …” in a conversation, or add something here. With a model that you connected, Tenax also reviews the
        conversation after an answer and remembers what may be useful later. The review is one more call to the model. Everything that is
        remembered in a conversation appears there as a line with an Undo button. Nothing is remembered from temporary conversations.
      </p>
      <p>
        To turn off the review, add this to {file ? <code>{visible(file)}</code> : "the settings file"}:
      </p>
      <pre tabIndex={0}>{"[memory]\nreview = false"}</pre>
    </>
  );
}

function Group({ title, detail, members }: { title: string; detail: string; members: Fact[] }) {
  const [shown, setShown] = useState(SHOWN);
  if (members.length === 0) return null;
  return (
    <section class="facts" aria-label={title}>
      <h2>
        {title} <span class="meta">{detail}</span>
      </h2>
      <ul>
        {members.slice(0, shown).map((fact) => (
          <Item key={fact.id} fact={fact} />
        ))}
      </ul>
      {members.length > shown && (
        <button type="button" class="quiet" onClick={() => setShown(shown + 5 * SHOWN)}>
          Show more of {members.length.toLocaleString()}
        </button>
      )}
    </section>
  );
}

function Item({ fact }: { fact: Fact }) {
  const [seen, setSeen] = useState<Fact | null>(null);
  if (seen !== null)
    return (
      <li data-fact={fact.id}>
        <div role="alert">
          {fact.text !== seen.text && <p class="refusal">Somebody else changed this. It now says: {visible(fact.text)}</p>}
        </div>
        <Write
          label="What to remember"
          text={seen.text}
          about={seen.about}
          save={async (text, about) => (await save(fact, text, about)) !== undefined}
          close={() => {
            setSeen(null);
            // It may be in the other group now.
            requestAnimationFrame(() => document.querySelector<HTMLElement>(`[data-fact="${CSS.escape(fact.id)}"] button`)?.focus());
          }}
        />
      </li>
    );
  return (
    <li data-fact={fact.id}>
      <p class="text" dir="auto">
        {marked(visible(fact.text), query.value).map((piece, n) => (piece.hit ? <mark key={n}>{piece.text}</mark> : <span key={n}>{piece.text}</span>))}
      </p>
      <div class="about">
        <Source fact={fact} />
        <button type="button" class="quiet" aria-label={`Edit: ${visible(fact.text)}`} onClick={() => setSeen(fact)}>
          Edit
        </button>
        <button type="button" class="quiet" aria-label={`Forget: ${visible(fact.text)}`} onClick={(event) => forgetHere(event.currentTarget, fact)}>
          Forget
        </button>
      </div>
    </li>
  );
}

/** Forget a fact. Its button disappears, so move the keyboard focus to the next fact. */
function forgetHere(button: HTMLElement, fact: Fact): void {
  const item = button.closest("li");
  const near = (item?.nextElementSibling ?? item?.previousElementSibling)?.querySelector<HTMLElement>("button");
  const next = near ?? document.querySelector<HTMLElement>(".tools button");
  void forget(fact).then(() => {
    if (!button.isConnected || document.activeElement === document.body) next?.focus();
  });
}

function Source({ fact }: { fact: Fact }) {
  const time = new Date(fact.at);
  return (
    <p class="meta">
      {BY[fact.by]},{" "}
      <time dateTime={fact.at} title={time.toLocaleString()}>
        {shortTime(time)}
      </time>
      {fact.conversation !== null && (
        <>
          , from{" "}
          <a href={`${pathOf(fact.conversation)}#user-${fact.seq ?? 0}`} onClick={follow} dir="auto">
            {visible(titleOf({ title: fact.title }))}
          </a>
        </>
      )}
      {fact.scope !== null && " (used only there, because other people write there too)"}
    </p>
  );
}

interface WriteProps {
  label: string;
  text: string;
  about: Fact["about"];
  /** Returns true if the fact was saved. */
  save: (text: string, about: Fact["about"]) => Promise<boolean>;
  close: () => void;
}

function Write({ label, save, close, ...given }: WriteProps) {
  const [text, setText] = useState(given.text);
  const [about, setAbout] = useState(given.about);
  const [busy, setBusy] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => area.current?.focus(), []);
  const done = async (event: Event) => {
    event.preventDefault();
    if (busy || text.trim() === "") return;
    setBusy(true);
    if (await save(text, about)) close();
    else setBusy(false);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (event.key === "Enter" && !event.isComposing && event.target instanceof HTMLTextAreaElement) void done(event);
  };
  return (
    <form class="connect write" onSubmit={(event) => void done(event)} onKeyDown={onKeyDown}>
      <label>
        {label}
        <textarea ref={area} rows={2} maxLength={TEXT_MAX} value={text} onInput={(event) => setText(event.currentTarget.value)} dir="auto" />
      </label>
      <fieldset>
        <legend class="hidden">Category</legend>
        {GROUPS.map(([group, title]) => (
          <label class="radio" key={group}>
            <input type="radio" name="about" checked={about === group} onChange={() => setAbout(group)} />
            {title}
          </label>
        ))}
      </fieldset>
      <div class="choices">
        <button type="submit" class="main" disabled={busy || text.trim() === ""}>
          Save
        </button>
        <button type="button" onClick={close}>
          Cancel
        </button>
      </div>
    </form>
  );
}

function Import() {
  const input = useRef<HTMLInputElement>(null);
  const chosen = (target: HTMLInputElement) => {
    const file = target.files?.[0];
    target.value = ""; // the same file may be chosen again
    if (file !== undefined) void take(file);
  };
  return (
    <>
      <button type="button" onClick={() => input.current?.click()}>
        Import
      </button>
      <input ref={input} type="file" accept=".md,text/markdown,text/plain" hidden aria-label="File to import" onChange={(event) => chosen(event.currentTarget)} />
    </>
  );
}

function Providers() {
  if (providers.value.length === 0) return null;
  return (
    <section class="facts" aria-label="Providers">
      <h2>
        Providers <span class="meta">External memory services</span>
      </h2>
      <ul>
        {providers.value.map((provider) => (
          <ProviderItem key={provider.provider} provider={provider} />
        ))}
      </ul>
    </section>
  );
}

function ProviderItem({ provider }: { provider: Provider }) {
  const [busy, setBusy] = useState(false);
  const retry = async () => {
    setBusy(true);
    await attempt(async () => {
      const path = `/api/memory/providers/${encodeURIComponent(provider.provider)}/retry`;
      const { retried } = await call<{ retried: number }>("POST", path);
      toast(retried === 0 ? "Nothing was delivered." : `${retried} delivered.`);
    });
    await look();
    setBusy(false);
  };
  return (
    <li data-provider={provider.provider}>
      <p>
        <strong>{visible(provider.provider)}</strong> {visible(providerWords(provider))}
      </p>
      {provider.error !== "" && <p class="meta">Last error: {visible(provider.error)}</p>}
      {provider.letters.length > 0 && (
        <>
          <p class="meta">Could not be delivered:</p>
          <ul class="letters">
            {provider.letters.map((letter) => (
              <li key={`${letter.conversation}:${letter.seq}`} class="meta">
                <a href={`${pathOf(letter.conversation)}#user-${letter.seq}`} onClick={follow}>
                  Turn of {shortTime(new Date(letter.at / 1000))}
                </a>
                : {visible(letter.error)}
              </li>
            ))}
          </ul>
          <button type="button" disabled={busy} onClick={() => void retry()}>
            Retry
          </button>
        </>
      )}
    </li>
  );
}
