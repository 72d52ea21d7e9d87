// The sidebar: the list of conversations, and the search.
import { computed, effect, signal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";
import { call, sentenceOf } from "./api";
import { appIcon, appName, isChatApp } from "./chats";
import { Icon, IconButton } from "./icon";
import mark from "./mark.svg";
import { RowMenu } from "./menu";
import { urlOf } from "./paths";
import { listProject, prefer, projects } from "./preferences";
import { Marked } from "./prose";
import { clickSelects, isSelected, isSelecting, leaveSelection, select, SelectionBar } from "./selection";
import { attempt, connection, drawer, enter, fold, follow, go, hitWords, leaving, listed, listReady, Pager, palette, pathOf, route, titleOf } from "./state";
import { t, type TextKey } from "./text";
import type { Hit, Listed } from "./types";
import { ageOf, shortTime, visible } from "./words";

/** The keys that open the palette. */
const PALETTE_KEYS = /Mac/.test(navigator.platform) ? "⌘K" : "Ctrl K";
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
    problem.value = sentenceOf(error, "search.failed");
    if (before === null) hits.value = [];
  }
}

/** The sections of the list in display order: what waits for the person, running, pinned, then by age. */
const sections = computed(() => {
  const found = new Map<string, Listed[]>([t("list.asks"), t("list.running"), t("list.pinned")].map((name) => [name, []]));
  for (const conversation of listed.value) {
    if (conversation.archived !== archived.value || (listProject.value !== "" && conversation.project !== listProject.value)) continue;
    const { state, running, pinned } = conversation;
    const name = state === "asks" ? t("list.asks") : running ? t("list.running") : pinned ? t("list.pinned") : ageOf(conversation.updated_at);
    found.set(name, [...(found.get(name) ?? []), conversation]);
  }
  return [...found].filter(([, members]) => members.length > 0);
});
const shownIds = () => sections.value.flatMap(([, members]) => members.map(({ id }) => id));
effect(() => {
  void [archived.value, listProject.value];
  leaveSelection(); // what is selected must be in sight
});

export function focusSearch(): void {
  const focus = () => document.querySelector<HTMLInputElement>("#search")?.focus();
  drawer.value = true;
  focus();
  requestAnimationFrame(focus); // on a phone, after the drawer has rendered
}

/** Search all messages for these words in the sidebar. */
export function searchFor(words: string): void {
  fold(false);
  query.value = words;
  focusSearch();
}

/** Arrows move between the search box and the links of the list. */
function arrows(event: KeyboardEvent): void {
  if (event.key === "ContextMenu" || (event.key === "F10" && event.shiftKey)) {
    const more = (document.activeElement as HTMLElement | null)?.closest("li")?.querySelector<HTMLElement>(".more");
    if (more) event.preventDefault();
    more?.click();
    return;
  }
  if (event.key === "Escape") {
    if (isSelecting.value) leaveSelection();
    else if (query.value !== "") query.value = "";
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

export const hitPath = (hit: Hit): string => pathOf(hit.conversation) + (hit.role === "title" || !hit.standing ? "" : `#${hit.role}-${hit.seq}`);

/** Open a search result, and remember the words to mark there. */
function followHit(event: MouseEvent): void {
  hitWords.value = query.value;
  follow(event);
}

/** Open a temporary conversation now, not with its first message, so that its header says "Temporary" while the person types. */
export const openTemporary = () => attempt(async () => {
  const one = await call<Listed>("POST", "/api/conversations", { temporary: true, ...(listProject.value && { project: listProject.value }), ...(leaving() && { leaving: leaving() }) });
  enter(one);
});

export function Sidebar() {
  const scroller = useRef<HTMLDivElement>(null);
  useEffect(() => { if (archived.value) void pages.true.more(); }, [archived.value]);
  const nearEnd = () => {
    const box = scroller.current;
    if (box === null || box.scrollHeight - box.scrollTop - box.clientHeight >= 300) return;
    // The stream delivers the first page. If the list is already at its end, no scroll event follows: check again after each page.
    void pages[archived.value ? "true" : "false"].more().then((came) => came && requestAnimationFrame(nearEnd));
  };
  useEffect(() => {
    if (listProject.value !== "") requestAnimationFrame(nearEnd); // the first page may have few of its conversations
  }, [listProject.value, archived.value]);
  return <nav class="sidebar" id="list" aria-label={t("list.title")} onKeyDown={arrows}>
    <div class="brand">
      <a href={urlOf("/")} onClick={follow} class="home"><img src={mark} alt="" width="26" height="26" /><span>Tenax</span></a>
      <IconButton icon="commands" name={t("palette.open", { keys: PALETTE_KEYS })} act={() => (palette.value = "")} />
      <IconButton icon="panel" name={t("list.fold")} kind="folds" act={() => fold(true)} />
    </div>
    <div class="fresh-row">
      <a href={urlOf("/")} class="button" onClick={follow}><Icon name="new" />{t("conversation.new")}</a>
      <IconButton icon="temporary" name={t("list.new_temporary")} act={() => void openTemporary()} />
    </div>
    <div class="search" role="search">
      <Icon name="search" />
      <input id="search" type="search" aria-label={t("search.label")} aria-keyshortcuts="/"
        placeholder={matchMedia("(pointer: fine)").matches ? t("search.placeholder", { keys: "/" }) : t("search.short")} value={query.value}
        onInput={(event) => (query.value = event.currentTarget.value)} autocomplete="off" />
    </div>
    {projects.value.length > 0 && <div class="filter">
      <Icon name="folder" />
      <select aria-label={t("list.filter")} value={listProject.value} onChange={(event) => void attempt(() => prefer("project", event.currentTarget.value))}>
        <option value="">{t("list.all")}</option>
        {projects.value.map(({ id, name }) => <option key={id} value={id}>{visible(name)}</option>)}
      </select>
    </div>}
    <SelectionBar />
    <div class="items" ref={scroller} onScroll={nearEnd}>{hits.value === null ? <Items /> : <Hits />}</div>
    <div class="foot">
      <button type="button" class="quiet" aria-pressed={archived.value} onClick={() => (archived.value = !archived.value)}>
        <Icon name="archive" />{t("list.archived")}
      </button>
      <a href={urlOf("/memory")} onClick={follow} aria-current={route.value.screen === "memory" ? "page" : undefined}>
        <Icon name="memory" />{t("memory.title")}
      </a>
      <a href={urlOf("/settings")} onClick={follow} aria-current={route.value.screen === "settings" ? "page" : undefined}>
        <Icon name="settings" />{t("settings.title")}
      </a>
    </div>
  </nav>;
}

function Items() {
  if (!listReady.value) return <p class="empty">{t(connection.value === "lost" ? "common.reconnecting" : "common.loading")}</p>;
  if (sections.value.length === 0)
    return <p class="empty">{t(archived.value ? "list.none_archived" : listProject.value === "" ? "list.none" : "list.none_project")}</p>;
  return <>
    {sections.value.map(([name, members]) => <section key={name} aria-label={name}>
      <h2>{name}</h2>
      <ul>{members.map((conversation) => <Item key={conversation.id} conversation={conversation} />)}</ul>
    </section>)}
  </>;
}

const STATES: Record<string, TextKey> = { asks: "list.asks", running: "list.running", failed: "list.failed", "": "list.unread" };

function Item({ conversation }: { conversation: Listed }) {
  const { id } = conversation;
  const here = route.value.conversation === id && route.value.screen === "conversation";
  const unread = conversation.unread && !here;
  const state = conversation.running && conversation.state === "" ? "running" : conversation.state;
  const project = listProject.value === "" && conversation.project !== "" ? projects.value.find((one) => one.id === conversation.project) : undefined;
  return <li data-selected={isSelected(id)}>
    {isSelecting.value &&
      <input type="checkbox" checked={isSelected(id)} aria-label={t("selection.row", { title: visible(titleOf(conversation)) })} onChange={() => select(id)} />}
    <a href={urlOf(pathOf(id))} onClick={(event) => clickSelects(event, id, shownIds) || follow(event)} data-item data-conversation={id}
      data-running={conversation.running} data-unread={unread} aria-current={here ? "page" : undefined}>
      {(state !== "" || unread) && <span class="pulse" data-state={state} role="img" aria-label={t(STATES[state]!)} />}
      {conversation.temporary === true && <Icon name="temporary" label={t("list.temporary")} />}
      {isChatApp(conversation.source) && <Icon name={appIcon(conversation.source)} label={t("chat.from", { app: appName(conversation.source) })} />}
      <span class="title" dir="auto">{visible(titleOf(conversation))}</span>
      <time dateTime={conversation.updated_at}>{shortTime(new Date(conversation.updated_at))}</time>
      {project !== undefined && <small class="project" dir="auto">{visible(project.name)}</small>}
    </a>
    <RowMenu conversation={conversation} select={() => select(id, true)} />
  </li>;
}

const WHO: Record<string, TextKey> = { user: "role.user", assistant: "role.answer", partial: "role.answer", tool: "role.tool", title: "role.title" };

function Hits() {
  const found = hits.value ?? [];
  return <section aria-label={t("search.results")}>
    <div role="status"><h2>{problem.value || t(found.length === 0 ? "search.none" : "search.some")}</h2></div>
    <ul>
      {found.map((hit) => <li key={`${hit.conversation}:${hit.seq}:${hit.role}`}>
        <a href={urlOf(hitPath(hit))} onClick={followHit} data-item data-hit={`${hit.conversation}:${hit.seq}`} class="found">
          <span class="title" dir="auto">{visible(titleOf({ title: hit.title }))}</span>
          <time dateTime={hit.at}>{shortTime(new Date(hit.at))}</time>
          <span class="snippet" dir="auto">
            {!hit.standing && <strong class="tag">{t("search.removed")} </strong>}
            <b>{WHO[hit.role] === undefined ? hit.role : t(WHO[hit.role]!)}:</b>{" "}
            <Marked text={visible(hit.text)} words={query.value} />
          </span>
        </a>
      </li>)}
    </ul>
    {next.value !== null && found.length > 0 &&
      <button type="button" class="quiet" onClick={() => void search(query.value.trim(), next.value)}>{t("common.more")}</button>}
  </section>;
}
