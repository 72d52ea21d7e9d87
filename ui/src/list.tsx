// The sidebar: the list of conversations, and the search.
import { computed, effect, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { call, Problem } from "./api";
import { Icon } from "./icon";
import mark from "./mark.svg";
import { attempt, drawer, follow, go, hitWords, leaving, listed, listReady, Pager, pathOf, putListed, route, titleOf } from "./state";
import type { Hit, Listed } from "./types";
import { ageOf, marked, shortTime, visible } from "./words";

const query = signal("");
const hits = signal<Hit[] | null>(null);
const next = signal<string | null>(null);
const problem = signal("");
const archived = signal(false);
const pages = { true: new Pager(true), false: new Pager(false) };

let searching: ReturnType<typeof setTimeout> | undefined;
effect(() => {
  const wanted = query.value.trim();
  clearTimeout(searching);
  if (wanted === "") hits.value = null;
  else searching = setTimeout(() => void search(wanted, null), 200);
});

async function search(wanted: string, before: string | null): Promise<void> {
  try {
    const page = before === null ? "" : `&before=${encodeURIComponent(before)}`;
    const path = `/api/search?q=${encodeURIComponent(wanted)}&limit=20${page}`;
    const found = await call<{ hits: Hit[]; next: string | null }>("GET", path);
    if (query.value.trim() !== wanted) return;
    hits.value = before === null ? found.hits : [...(hits.value ?? []), ...found.hits];
    next.value = found.next;
    problem.value = "";
  } catch (error) {
    if (query.value.trim() !== wanted) return;
    problem.value = error instanceof Problem ? error.sentence : "The search failed.";
    if (before === null) hits.value = [];
  }
}

/** The sections of the list in display order: running, pinned, then by age. */
const sections = computed(() => {
  const found = new Map<string, Listed[]>([
    ["Running", []],
    ["Pinned", []],
  ]);
  for (const conversation of listed.value) {
    if (conversation.archived !== archived.value) continue;
    const name = conversation.running ? "Running" : conversation.pinned ? "Pinned" : ageOf(conversation.updated_at);
    found.set(name, [...(found.get(name) ?? []), conversation]);
  }
  return [...found].filter(([, members]) => members.length > 0);
});

export function focusSearch(): void {
  const focus = () => document.querySelector<HTMLInputElement>("#search")?.focus();
  drawer.value = true;
  focus();
  requestAnimationFrame(focus); // on a phone, after the drawer has rendered
}

/** Arrows move between the search box and the links of the list. */
function arrows(event: KeyboardEvent): void {
  if (event.key === "Escape") {
    if (query.value !== "") query.value = "";
    else {
      (document.activeElement as HTMLElement | null)?.blur();
      drawer.value = false;
    }
    return;
  }
  const places = [...(event.currentTarget as HTMLElement).querySelectorAll<HTMLElement>("#search, a[data-item]")];
  const at = places.indexOf(document.activeElement as HTMLElement);
  if (at === -1) return;
  const inBox = at === 0;
  const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  const end = inBox ? undefined : { Home: 1, End: places.length - 1 }[event.key];
  const target = step === undefined ? (end === undefined ? undefined : places[end]) : places[at + step];
  if (target !== undefined) {
    event.preventDefault();
    target.focus();
  } else if (event.key === "Enter" && inBox && hits.value?.[0] !== undefined) {
    hitWords.value = query.value;
    go(hitPath(hits.value[0]));
  }
}

const hitPath = (hit: Hit): string => pathOf(hit.conversation) + (hit.role === "title" || !hit.standing ? "" : `#${hit.role}-${hit.seq}`);

/** Open a search result, and remember the words to mark there. */
function followHit(event: MouseEvent): void {
  hitWords.value = query.value;
  follow(event);
}

/** Open a temporary conversation now, not with its first message, so that its header says "Temporary" while the person types. */
const openTemporary = () =>
  attempt(async () => {
    const one = await call<Listed>("POST", "/api/conversations", { temporary: true, ...(leaving() && { leaving: leaving() }) });
    putListed(one);
    go(pathOf(one.id));
  });

export function Sidebar() {
  const scroller = useRef<HTMLDivElement>(null);
  useEffect(() => {
    if (archived.value) void pages.true.more();
  }, [archived.value]);
  const nearEnd = () => {
    const box = scroller.current;
    if (box === null || box.scrollHeight - box.scrollTop - box.clientHeight >= 300) return;
    // The stream delivers the first page. If the list is already at its end, no scroll event follows: check again after each page.
    void pages[archived.value ? "true" : "false"].more().then((came) => came && requestAnimationFrame(nearEnd));
  };
  return (
    <nav class="sidebar" id="list" aria-label="Conversations" onKeyDown={arrows}>
      <div class="brand">
        <a href="/" onClick={follow} class="home">
          <img src={mark} alt="" width="28" height="28" />
          <span>Tenax</span>
        </a>
        <a href="/" class="button" onClick={follow}>
          New conversation
        </a>
      </div>
      <button type="button" class="quiet apart" onClick={() => void openTemporary()}>
        New temporary conversation
      </button>
      <div class="search" role="search">
        <input
          id="search"
          type="search"
          aria-label="Search all conversations"
          aria-keyshortcuts="Control+K Meta+K"
          placeholder="Search (Ctrl K)"
          value={query.value}
          onInput={(event) => (query.value = event.currentTarget.value)}
          autocomplete="off"
        />
      </div>
      <div class="items" ref={scroller} onScroll={nearEnd}>
        {hits.value === null ? <Items /> : <Hits />}
      </div>
      <div class="foot">
        <button type="button" class="quiet" aria-pressed={archived.value} onClick={() => (archived.value = !archived.value)}>
          Archived
        </button>
        <a href="/memory" onClick={follow} aria-current={route.value.screen === "memory" ? "page" : undefined}>
          Memory
        </a>
        <a href="/setup" onClick={follow} aria-current={route.value.screen === "setup" ? "page" : undefined}>
          Settings
        </a>
      </div>
    </nav>
  );
}

function Items() {
  if (!listReady.value) return <p class="empty">Loading…</p>;
  if (sections.value.length === 0)
    return <p class="empty">{archived.value ? "No archived conversations." : "No conversations yet."}</p>;
  return (
    <>
      {sections.value.map(([name, members]) => (
        <section key={name} aria-label={name}>
          <h2>{name}</h2>
          <ul>
            {members.map((conversation) => (
              <Item key={conversation.id} conversation={conversation} />
            ))}
          </ul>
        </section>
      ))}
    </>
  );
}

function Item({ conversation }: { conversation: Listed }) {
  const here = route.value.conversation === conversation.id && route.value.screen === "conversation";
  return (
    <li>
      <a
        href={pathOf(conversation.id)}
        onClick={follow}
        data-item
        data-conversation={conversation.id}
        data-running={conversation.running}
        aria-current={here ? "page" : undefined}
      >
        {conversation.running && <span class="pulse" role="img" aria-label="Running" />}
        {conversation.temporary === true && <Icon name="temporary" label="Temporary" />}
        <span class="title" dir="auto">
          {visible(titleOf(conversation))}
        </span>
        <time dateTime={conversation.updated_at}>{shortTime(new Date(conversation.updated_at))}</time>
      </a>
    </li>
  );
}

const WHO: Record<string, string> = { user: "You", assistant: "Answer", partial: "Answer", tool: "Tool", title: "Title" };

function Hits() {
  const found = hits.value ?? [];
  return (
    <section aria-label="Search results">
      <div role="status">
        <h2>{problem.value || (found.length === 0 ? "No results" : "Results")}</h2>
      </div>
      <ul>
        {found.map((hit) => (
          <li key={`${hit.conversation}:${hit.seq}:${hit.role}`}>
            <a href={hitPath(hit)} onClick={followHit} data-item data-hit={`${hit.conversation}:${hit.seq}`} class="found">
              <span class="title" dir="auto">
                {visible(titleOf({ title: hit.title }))}
              </span>
              <time dateTime={hit.at}>{shortTime(new Date(hit.at))}</time>
              <span class="snippet" dir="auto">
                {!hit.standing && <strong class="tag">Removed from the conversation. </strong>}
                <b>{WHO[hit.role] ?? hit.role}:</b>{" "}
                {marked(visible(hit.text), query.value).map((piece, n) =>
                  piece.hit ? <mark key={n}>{piece.text}</mark> : <span key={n}>{piece.text}</span>,
                )}
              </span>
            </a>
          </li>
        ))}
      </ul>
      {next.value !== null && found.length > 0 && (
        <button type="button" class="quiet" onClick={() => void search(query.value.trim(), next.value)}>
          More
        </button>
      )}
    </section>
  );
}
