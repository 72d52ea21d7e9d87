// The state of the page, as signals: the route, toasts, the active model, the list, the open conversation and the connection.
import { batch, computed, effect, signal, type Signal } from "@preact/signals";
import { become, call, conversationPath, isStillMe, me, Problem } from "./api";
import { adoptDrafts, carry } from "./drafts";
import { Hub } from "./hub";
import { recall, remember } from "./browserStorage";
import { updateWorker } from "./install";
import { KEY } from "./key";
import { projects, takePreferences } from "./preferences";
import { outbox, discard, pump, startOutbox, type Outgoing } from "./outbox";
import { inside, urlOf } from "./paths";
import { foldTurns, Mismatch, Rows } from "./rows";
import { t } from "./text";
import type { Connection, Frame, FromHub, Lacks, Listed, Model, Row, RowPage, Setup, ToHub } from "./types";

// -- the route -----------------------------------------------------------------------------------------------------

interface Route {
  screen: "conversation" | "setup" | "settings" | "memory";
  conversation: string | null;
  section: string; // The section of the settings; "" for the list of sections.
  hit: { seq: number; role: string } | null; // the message to show, from a search
}

/** Decode a part of a URL. A part that was cut in the middle of a character is returned as it is. */
function decoded(part: string): string {
  try { return decodeURIComponent(part); } catch { return part; }
}

function readRoute(): Route {
  const here = inside(location.pathname);
  const path = /^\/c\/([^/]+)/.exec(here)?.[1];
  const screen = /^\/(setup|settings|memory)(?:\/|$)/.exec(here)?.[1] as Route["screen"] | undefined;
  const hit = /^#(\w+)-(\d+)$/.exec(location.hash);
  return {
    screen: screen ?? "conversation",
    section: /^\/settings\/([a-z]+)/.exec(here)?.[1] ?? "",
    conversation: path === undefined ? null : decoded(path),
    hit: hit === null ? null : { role: hit[1]!, seq: Number(hit[2]) },
  };
}

export const route = signal<Route>(readRoute());
export const drawer = signal(false);
/** The words with which the palette opens, or null while it is closed. */
export const palette = signal<string | null>(null);
/** Whether the panel with the files is open, and the file that it shows. */
export const panel = signal(false);
export const openedFile = signal<string | null>(null);

/** Show a file of the open conversation in the panel. */
export function showFile(path: string): void {
  batch(() => {
    openedFile.value = path;
    panel.value = true;
  });
}

/** Whether the bar that searches the open conversation is shown. */
export const finding = signal(false);
/** Whether the list of the person's messages in the open conversation is shown. */
export const outlined = signal(false);
/** Whether the sidebar is folded on wide screens, in this browser. */
export const folded = signal(recall("tenax.folded") === "yes");

export function fold(away: boolean): void {
  folded.value = away;
  remember("tenax.folded", away ? "yes" : "");
}

export function go(path: string, how: "push" | "replace" = "push"): void {
  const here = urlOf(path) === location.pathname + location.hash; // do not add a history entry for the current page
  if (how === "push" && !here) history.pushState(null, "", urlOf(path));
  else history.replaceState(null, "", urlOf(path));
  batch(() => {
    route.value = readRoute();
    drawer.value = false;
    // The action of a toast is about the screen that the person has just left.
    if (!here) toasts.value = toasts.value.filter((toast) => toast.action === undefined);
  });
}

/** The click handler of links: plain clicks stay in the page; the browser handles others, such as a new tab. */
export function follow(event: MouseEvent): void {
  if (event.button !== 0 || event.metaKey || event.ctrlKey || event.shiftKey || event.altKey) return;
  event.preventDefault();
  const { pathname, hash } = event.currentTarget as HTMLAnchorElement;
  go(inside(pathname) + hash);
}

/** The words of the search that led to the open message. */
export const hitWords = signal("");
const ID = /^[A-Za-z0-9_.-]{1,128}$/;
export const pathOf = (id: string): string => `/c/${encodeURIComponent(id)}`;

// -- toasts --------------------------------------------------------------------------------------------------------

interface Toast { id: number; text: string; bad: boolean; action?: { label: string; run: () => void } }
export const toasts = signal<Toast[]>([]);
let toastCount = 0;

export function toast(text: string, action?: Toast["action"], bad = false): void {
  const id = ++toastCount;
  toasts.value = [...toasts.value.slice(-2), { id, text, bad, ...(action && { action }) }];
  setTimeout(() => dismiss(id), action === undefined ? 6000 : 12_000);
}

export const dismiss = (id: number): void => void (toasts.value = toasts.value.filter((toast) => toast.id !== id));

/** Run an action of the person. An error becomes a toast. */
export async function attempt<T>(work: () => Promise<T>): Promise<T | undefined> {
  try {
    return await work();
  } catch (error) {
    if (error instanceof Problem && error.status === 401) deny(error);
    toast(error instanceof Problem ? error.sentence : t("error.reload"), undefined, true);
    return undefined;
  }
}

// -- setup ---------------------------------------------------------------------------------------------------------

export const setup = signal<Setup | null>(null);
export const denied = signal(false);
/** The reason, as the server sent it. */
export const deniedWhy = signal("");

function deny(why: Problem): void {
  deniedWhy.value = why.message;
  denied.value = true;
}

/** The display name of a model, or an empty text for none. */
export function modelName(model: Model | null): string {
  if (model === null) return "";
  return model.kind === "practice" ? t("model.practice") : model.kind === "script" ? model.label : model.name || model.label;
}

/** Whether the person runs this Tenax: only they change the settings of the server. The server names the file to them only. */
export const isOwner = computed(() => setup.value !== null && setup.value.file !== "");
let loading: Promise<void> | null = null;

/** Load the setup. Calls at the same time share one request. */
export function loadSetup(): Promise<void> {
  loading ??= requestSetup().finally(() => (loading = null));
  return loading;
}

async function requestSetup(): Promise<void> {
  try {
    setup.value = await call<Setup>("GET", "/api/setup");
    if (me() === "") {
      become(setup.value.user); // the browser storage does not have the name
      adoptDrafts();
      void pump();
    }
    denied.value = false;
  } catch (error) {
    if (error instanceof Problem && (error.status === 401 || error.status === 403)) deny(error);
  }
}

// -- the list ------------------------------------------------------------------------------------------------------

const conversations = signal<ReadonlyMap<string, Listed>>(new Map());
export const listReady = signal(false);
export const listed = computed(() => [...conversations.value.values()].filter(isListed).sort(compareListed));

/** Sub-agents are reached from their parent. A temporary conversation is listed when something was said in it. */
function isListed(conversation: Listed): boolean {
  const unused = conversation.temporary === true && conversation.messages === 0;
  return !conversation.parent && (!unused || conversation.id === route.value.conversation);
}

function compareListed(a: Listed, b: Listed): number {
  return a.updated_at < b.updated_at ? 1 : a.updated_at > b.updated_at ? -1 : a.id < b.id ? 1 : -1;
}

export const titleOf = (conversation: { title: string | null; words?: string | null } | undefined): string =>
  conversation?.title || conversation?.words || t("conversation.new");

/** What a conversation wants of the person: an answer, a look at a failure or at a finished answer; or nothing yet. */
export type Attention = "" | "asks" | "failed" | "running" | "unread";

export function attentionOf({ state, unread }: Listed): Attention {
  if (state === "asks" || state === "running") return state;
  // A failure that the person has seen is past.
  return unread ? (state === "failed" ? "failed" : "unread") : "";
}

export function putListed(...changed: Listed[]): void {
  const next = new Map(conversations.value);
  for (const conversation of changed) next.set(conversation.id, conversation);
  conversations.value = next;
}

/** Open a conversation that was created just now. */
export function enter(created: Listed): void {
  putListed(created);
  go(pathOf(created.id));
}

/** Remove a conversation that was deleted here. The stream confirms it a moment later. */
export function dropListed(id: string): void { conversations.value = new Map([...conversations.value].filter(([name]) => name !== id)); }

function takeList(frame: Frame & { type: "list" }): void {
  const next = new Map(conversations.value);
  if (frame.reset) {
    // The new first page. Later pages stay. A conversation that belongs into the first page and is not in it was deleted.
    const lastTime = frame.conversations.reduce((last, conversation) => (conversation.updated_at < last ? conversation.updated_at : last), "~");
    const sent = new Set(frame.conversations.map((conversation) => conversation.id));
    for (const [id, conversation] of next) if (!sent.has(id) && !conversation.archived && conversation.updated_at >= lastTime) next.delete(id);
  }
  for (const conversation of frame.conversations) next.set(conversation.id, conversation);
  for (const id of frame.gone) next.delete(id);
  conversations.value = next;
  listReady.value = true;
}

/** Loads the pages of the list that the stream does not send. */
export class Pager {
  private next: string | null | undefined;
  private busy = false;

  constructor(private readonly archived: boolean) {}

  /** Load the next page. Returns true if a page was loaded. */
  async more(): Promise<boolean> {
    if (this.busy || this.next === null) return false;
    this.busy = true;
    try {
      const after = this.next === undefined ? "" : `&after=${encodeURIComponent(this.next)}`;
      const page = await call<{ conversations: Listed[]; next: string | null }>(
        "GET",
        `/api/conversations?archived=${this.archived}&limit=50${after}`,
      );
      this.next = page.next;
      putListed(...page.conversations);
      return true;
    } catch {
      return false; // the next scroll event tries again
    } finally {
      this.busy = false;
    }
  }
}

// -- the open conversation -----------------------------------------------------------------------------------------

const LAST_MAX = 100;
const OUTLINE_MIN = 5;
const REACH_PAGE = 200;
const REACH_PAGES_MAX = 500;

export class View {
  readonly rows = new Rows();
  readonly order = signal<string[]>([]);
  /** The number of the last event in the rows: everything up to it is in the rows or on a page above. */
  readonly at = signal(0);
  readonly ready = signal(false);
  readonly more = signal(false);
  readonly gone = signal(false);
  /** The message that the person edits, or null. */
  readonly editing = signal<string | null>(null);
  /** Bytes of an answer that are saved on the server's disk while the store is not responding. */
  readonly heldBytes = signal(0);
  private signals = new Map<string, Signal<Row>>();
  private loading: Promise<boolean> | null = null;

  constructor(readonly id: string) {}

  row(id: string): Signal<Row> {
    let found = this.signals.get(id);
    if (found === undefined) {
      found = signal(this.rows.byId.get(id)!);
      this.signals.set(id, found);
    }
    return found;
  }

  /** Whether a message that the server accepted is in the rows, or on a page above. */
  has(message: Outgoing): boolean {
    if (message.conversation !== this.id || message.seq === undefined) return false;
    return message.seq <= this.at.value || this.order.value.includes(String(message.seq));
  }

  /** The last row that matches, among the last LAST_MAX rows: open rows are always near the end. */
  last(wanted: (row: Row) => boolean): Row | undefined {
    const order = this.order.value;
    for (let n = order.length - 1; n >= Math.max(0, order.length - LAST_MAX); n--) {
      const row = this.row(order[n]!).value;
      if (row !== undefined && wanted(row)) return row;
    }
    return undefined;
  }

  // Computed, so that a growing answer renders nothing else.
  readonly streaming = computed(() => this.last((row) => row.kind === "assistant" && row.state === "streaming")?.id ?? null);
  readonly busy = computed(() => this.last((row) => row.state === "streaming" || row.state === "running") !== undefined);
  /** A tool call or a question waits for the person. */
  readonly asks = computed(() => this.last((row) => row.state === "asks") !== undefined);
  /** The kind of the last row that is not queued. A user message means that an answer is on its way. */
  readonly lastKind = computed(() => this.last((row) => row.state !== "queued" && row.state !== "steering")?.kind);
  /** The tool calls that wait for an approval. */
  readonly approvals = computed(() => this.order.value.slice(-LAST_MAX).filter((id) => this.row(id).value?.state === "asks" && this.row(id).value.name !== "ask"));
  readonly todo = computed(() => this.last((row) => row.kind === "tool" && row.name === "todo" && row.state !== "failed")?.id);
  readonly survived = computed(() => this.last((row) => row.kind === "marker" && row.state === "resumed") !== undefined);
  readonly settled = computed(() => {
    const last = this.last((row) => row.kind === "assistant" || row.kind === "marker" || row.kind === "tool");
    return last?.kind === "assistant" && (last.state ?? "") === "";
  });
  /** The last answer that is complete. */
  readonly answer = computed(() => this.last((row) => row.kind === "assistant" && (row.state ?? "") === "")?.id ?? null);

  /**
   * Answers of a run that were cut off and tried again. The last one of a run stands for all of them: its entry has their ids. The
   * entries of the others are empty.
   */
  readonly attempts = computed(() => {
    const found = new Map<string, string[]>();
    const later = new Set<string>();
    const last = new Map<string, string[]>();
    for (const id of [...this.order.value].reverse()) {
      // Not the signals of the rows: a growing answer must not render all rows again. A new attempt is a new row.
      const { kind, run, state } = this.rows.byId.get(id)!;
      if (kind !== "assistant" || !run) continue;
      if (state === "cut" && later.has(run)) {
        const all = last.get(run) ?? [];
        if (all.length === 0) last.set(run, all);
        found.set(id, all.length === 0 ? all : []);
        all.unshift(id);
      }
      later.add(run);
    }
    return found;
  });

  /** Whether the person wrote so many messages that an outline helps. */
  readonly long = computed(() => this.more.value || this.order.value.filter((id) => this.rows.byId.get(id)?.kind === "user").length > OUTLINE_MIN);

  /** The work of finished turns, which is shown as one line. A turn is finished when nothing runs any more. */
  readonly folds = computed(() => {
    void [this.order.value, this.busy.value, this.asks.value, this.settled.value]; // what a fold depends on; the rows are no signal
    return foldTurns(this.rows.all);
  });
  /** The folded turns that the person opened, by their first row. */
  readonly unfolded = signal<ReadonlySet<string>>(new Set());

  unfold(id: string, open: boolean): void {
    if (this.unfolded.value.has(id) === open) return;
    const next = new Set(this.unfolded.value);
    if (open) next.add(id);
    else next.delete(id);
    this.unfolded.value = next;
  }

  /** Open the folded turn that contains a row. */
  reveal(id: string): void { for (const [first, members] of this.folds.value) if (members.includes(id)) this.unfold(first, true); }

  take(frame: Frame): void {
    if (frame.type === "rows") {
      this.rows.snapshot(frame);
      this.show(new Set(this.signals.keys()), true);
      this.at.value = frame.at;
      this.ready.value = true;
    } else if (frame.type === "changes") {
      try {
        const touched = this.rows.apply(frame.changes);
        this.show(touched.ids, touched.order);
        this.at.value = frame.at;
      } catch (error) {
        if (!(error instanceof Mismatch)) throw error;
        tell({ type: "again", conversation: this.id });
      }
    } else if (frame.type === "gone") this.gone.value = true;
    else if (frame.type === "held") this.heldBytes.value = frame.bytes;
  }

  private show(ids: Iterable<string>, order: boolean): void {
    for (const id of ids) {
      const row = this.rows.byId.get(id);
      const held = this.signals.get(id);
      if (row === undefined) this.signals.delete(id);
      else if (held !== undefined) held.value = row;
    }
    this.more.value = this.rows.next !== null;
    if (order) this.order.value = this.rows.order;
  }

  /** Load the page above. Returns false if there is none, or if the request failed. */
  older(limit = 50): Promise<boolean> {
    this.loading ??= this.loadOlder(limit).finally(() => (this.loading = null));
    return this.loading;
  }

  /** Load the pages above up to the event with this number. They are shown together: each page alone would render everything again. */
  async reach(seq: number): Promise<void> {
    await this.loading;
    const load = async () => {
      for (let page = 0; page < REACH_PAGES_MAX; page++) {
        const oldest = this.rows.oldest;
        const reached = this.rows.next === null || this.rows.byId.has(String(seq)) || (oldest !== undefined && oldest.key[0] <= seq);
        if (reached || !(await this.loadOlder(REACH_PAGE, false))) break;
      }
      batch(() => this.show([], true));
      return true;
    };
    this.loading ??= load().finally(() => (this.loading = null));
    await this.loading;
  }

  private async loadOlder(limit: number, show = true): Promise<boolean> {
    const { next } = this.rows;
    if (next === null) return false;
    try {
      const path = conversationPath(this.id, `/rows?before=${next}&limit=${limit}`);
      const page = await call<RowPage>("GET", path);
      if (this.rows.next !== next) return true; // a snapshot arrived in the meantime
      this.rows.older(page);
      if (show) batch(() => this.show([], true));
      return page.rows.length > 0;
    } catch {
      return false;
    }
  }
}

export const view = signal<View | null>(null);
let left: string | null = null;
/** The conversation that was open last, if it still exists. Leaving it ends a segment for the memory. */
export const leaving = (): string | null => (left !== null && conversations.peek().has(left) ? left : null);
effect(() => {
  const next = route.value.conversation;
  if (next === null) return;
  const before = leaving();
  if (before !== null && before !== next) void call("POST", conversationPath(before, "/left")).catch(() => undefined);
  left = next;
});

export const current = computed(() => conversations.value.get(route.value.conversation ?? ""));

/** An answer is being written, or will be. */
export const running = computed(() => {
  // The list does not update a sub-agent; use its rows.
  return (current.value?.running === true && !current.value.parent) || view.value?.busy.value === true;
});

// -- the connection ------------------------------------------------------------------------------------------------

export const connection = signal<Connection>("connecting");
/** What the store lost, if it is an older copy. */
export const lacks = signal<Lacks | null>(null);
/** The state of the banner. "back" stays for some seconds after a reconnect. */
export const banner = signal<"live" | "lost" | "back">("live");
/** The conversation of the tour in which the person killed the server. */
export const plugged = signal<string | null>(recall("tenax.plugged"));
export const wasPulled = signal(false);
let tell: (message: ToHub) => void = () => undefined;
let bannerTimer: ReturnType<typeof setTimeout> | undefined;

export function pulled(conversation: string): void {
  remember("tenax.plugged", conversation);
  plugged.value = conversation;
  wasPulled.value = true;
}

function heard(message: FromHub): void {
  if (message.type === "connection") return connected(message.state);
  const { frame } = message;
  batch(() => {
    if (frame.type === "list") takeList(frame);
    else if (frame.type === "hello") {
      lacks.value = null; // the server reports it again if it still applies
      greeted(frame.version);
    } else if (frame.type === "store") lacks.value = frame.lacks;
    else if (frame.type === "preferences") takePreferences(frame.preferences);
    else if (frame.type === "projects") projects.value = frame.projects;
    else if ("conversation" in frame && frame.conversation === view.value?.id) view.value.take(frame);
  });
}

let version = "";

/** Offer a reload if the server has another version than before. */
function greeted(next: string): void {
  if (version !== "" && version !== next) {
    void updateWorker().catch(() => undefined); // the next navigation tries again
    toast(t("page.updated"), { label: t("common.reload"), run: () => location.reload() });
  }
  version = next;
}

function connected(state: Connection): void {
  const before = connection.value;
  if (state === before) return;
  clearTimeout(bannerTimer);
  batch(() => {
    connection.value = state;
    if (state === "lost") banner.value = "lost";
    else if (state === "live" && banner.value === "lost") {
      banner.value = "back";
      bannerTimer = setTimeout(() => {
        banner.value = "live";
        wasPulled.value = false;
      }, 6000);
    }
  });
  if (state === "denied") void loadSetup(); // to show the reason
  if (state === "live") {
    // At the first connection the setup is loaded already, or on its way.
    if (before !== "connecting" || setup.value === null) void loadSetup();
    void pump(true);
  }
}

function connectHub(): void {
  const alone = () => {
    const hub = new Hub();
    const port = { post: (message: FromHub) => queueMicrotask(() => heard(message)) };
    tell = (message) => hub.hear(port, message);
    tell({ type: "join", key: recall(KEY) ?? "" });
    tell({ type: "watch", conversation: view.value?.id ?? null });
  };
  if (typeof SharedWorker === "undefined") return alone();
  try {
    const worker = new SharedWorker(new URL("./worker.ts", import.meta.url), { type: "module", name: "tenax" });
    worker.onerror = alone; // the worker script did not load
    worker.port.onmessage = (event: MessageEvent<FromHub>) => heard(event.data);
    tell = (message) => worker.port.postMessage(message);
    tell({ type: "join", key: recall(KEY) ?? "" });
  } catch {
    alone();
  }
}

export function start(): void {
  adoptDrafts();
  connectHub();
  effect(() => {
    const id = route.value.screen === "conversation" ? route.value.conversation : null;
    if (id === (view.peek()?.id ?? null)) return;
    const next = id === null ? null : new View(id);
    if (next !== null && !ID.test(next.id)) next.gone.value = true; // an invalid id would make the whole cursor invalid
    view.value = next;
    openedFile.value = null;
    tell({ type: "watch", conversation: next === null || next.gone.peek() ? null : next.id });
  });
  effect(() => {
    // The outbox shows an accepted message until the stream delivers its row.
    const arrived = outbox.value.filter((message) => view.value?.has(message));
    if (arrived.length > 0) queueMicrotask(() => arrived.forEach((message) => discard(message.key)));
  });
  startOutbox({
    opened: (id, entry) => {
      if (entry !== undefined) putListed(entry);
      if (route.value.screen !== "conversation" || route.value.conversation !== null) return;
      carry(id);
      go(pathOf(id), "replace");
    },
    denied: () => void loadSetup(),
  });
  window.addEventListener("storage", (event) => {
    if (event.key !== KEY) return;
    if (me() !== "" && !isStillMe()) return location.reload(); // another tab signed somebody else in
    tell({ type: "key", key: recall(KEY) ?? "" });
    void loadSetup();
  });
  window.addEventListener("popstate", () => (route.value = readRoute()));
  window.addEventListener("online", () => tell({ type: "now" }));
  document.addEventListener("visibilitychange", () => { if (document.visibilityState === "visible") tell({ type: "now" }); });
  window.addEventListener("pagehide", () => tell({ type: "bye" }));
  window.addEventListener("pageshow", (event) => {
    if (!event.persisted) return;
    tell({ type: "join", key: recall(KEY) ?? "" });
    tell({ type: "watch", conversation: view.value?.id ?? null });
  });
  void loadSetup();
}

/** Load the list entry of a conversation that is not in the list: it is old, archived, or was opened by its URL. */
export async function fetchListed(id: string): Promise<void> {
  try {
    putListed(await call<Listed>("GET", conversationPath(id)));
  } catch (error) {
    if (error instanceof Problem && (error.status === 404 || error.status === 410) && view.value?.id === id) view.value.gone.value = true;
  }
}
