// Messages that the server has not confirmed. They stay in the browser's storage until their 202 came, and are sent
// again by themselves; the Idempotency-Key makes it harmless to send one twice. Each goes to its conversation in order.
import { signal } from "@preact/signals";
import { call, conversationPath, newKey, Problem } from "./api";
import { recall, remember } from "./memory";
import type { How, Listed } from "./types";

const STORED = "tenax.outbox";
const WAIT_MS = [500, 1000, 2000, 4000, 8000, 15_000];

export interface Outgoing {
  key: string;
  /** null: a conversation has to be opened for it first. */
  conversation: string | null;
  leaving: string | null;
  text: string;
  how: How;
  /** The greatest number of a message of the person that this page knew when it was written. */
  after: number;
  tries: number;
  /** Why the server refused it for good. */
  refused?: string;
  /** Its number, once the server took it; shown until the stream brings its row. */
  seq?: number;
}

export const outbox = signal<Outgoing[]>(load());

function load(): Outgoing[] {
  try {
    const held = JSON.parse(recall(STORED) ?? "[]") as unknown;
    return Array.isArray(held) ? (held as Outgoing[]) : [];
  } catch {
    return [];
  }
}

/** A message is beyond the browser's quota: what this tab holds is then more than what is stored. */
let unsaved = false;

/** True if the browser keeps it; else it lives as long as the tab. */
function save(next: Outgoing[]): boolean {
  outbox.value = next;
  const waiting = next.filter((each) => each.seq === undefined);
  unsaved = !remember(STORED, waiting.length === 0 ? "" : JSON.stringify(waiting));
  return !unsaved;
}

/** Take over what other tabs sent or added. */
function refresh(): void {
  if (!unsaved) outbox.value = [...outbox.value.filter((each) => each.seq !== undefined), ...load()];
}

const alter = (key: string, fields: Partial<Outgoing>): boolean =>
  save(outbox.value.map((each) => (each.key === key ? { ...each, ...fields } : each)));

export const discard = (key: string): boolean => save(outbox.value.filter((each) => each.key !== key));

export interface OutboxEvents {
  /** A conversation was opened for a message. */
  opened(listed: Listed, key: string): void;
  denied(): void;
}
let events: OutboxEvents = { opened: () => undefined, denied: () => undefined };
let timer: ReturnType<typeof setTimeout> | undefined;
let busy = false;

export function startOutbox(heard: OutboxEvents): void {
  events = heard;
  window.addEventListener("storage", (event) => {
    if (event.key === STORED) refresh();
  });
  window.addEventListener("online", () => void pump(true));
  void pump();
}

export function submit(message: Omit<Outgoing, "key" | "tries">): boolean {
  const kept = save([...outbox.value, { ...message, key: newKey(), tries: 0 }]);
  void pump();
  return kept;
}

export function retry(key: string): void {
  save(
    outbox.value.map((each) => {
      const { refused: _refused, ...rest } = each;
      return each.key === key ? { ...rest, tries: 0 } : each;
    }),
  );
  void pump(true);
}

/** When a message that failed is sent again, at the earliest. */
const due = new Map<string, number>();

/** Send what waits; `now` also what failed a moment ago. Tabs take turns where the browser has locks. */
export async function pump(now = false): Promise<void> {
  if (now) due.clear();
  if (busy) return;
  busy = true;
  clearTimeout(timer);
  try {
    // `locks` is missing on plain http elsewhere than on localhost; two tabs may then send the same message, once.
    if ("locks" in navigator) await navigator.locks.request(STORED, sendAll);
    else await sendAll();
  } finally {
    busy = false;
  }
  const heads = new Map<string | null, Outgoing>();
  for (const each of outbox.value.filter(isWaiting)) if (!heads.has(each.conversation)) heads.set(each.conversation, each);
  if (heads.size === 0) return;
  const next = Math.min(...[...heads.values()].map((each) => due.get(each.key) ?? 0));
  timer = setTimeout(() => void pump(), Math.max(0, next - Date.now()));
}

const isWaiting = (each: Outgoing): boolean => each.seq === undefined && each.refused === undefined;

async function sendAll(): Promise<void> {
  refresh();
  const stuck = new Set<string | null>();
  for (const { key } of outbox.value) {
    const message = outbox.value.find((each) => each.key === key);
    if (message === undefined || !isWaiting(message) || stuck.has(message.conversation)) continue;
    if ((due.get(key) ?? 0) > Date.now() || !(await send(message))) stuck.add(message.conversation);
  }
}

async function send(message: Outgoing): Promise<boolean> {
  try {
    let { conversation } = message;
    if (conversation === null) {
      const body = message.leaving === null ? {} : { leaving: message.leaving };
      const listed = await call<Listed>("POST", "/api/conversations", body);
      conversation = listed.id;
      const id = conversation; // what else was written there waits for the same conversation
      save(outbox.value.map((each) => (each.conversation === null ? { ...each, conversation: id } : each)));
      events.opened(listed, message.key);
    }
    const path = conversationPath(conversation, "/messages");
    const body = { text: message.text, how: message.how };
    const { seq } = await call<{ seq: number }>("POST", path, body, { "Idempotency-Key": message.key });
    alter(message.key, { seq });
    return true;
  } catch (error) {
    const why = error instanceof Problem ? error : new Problem(0, "The message could not be sent.");
    if (why.status === 401) events.denied();
    if (why.passing) {
      due.set(message.key, Date.now() + WAIT_MS[Math.min(message.tries, WAIT_MS.length - 1)]!);
      alter(message.key, { tries: message.tries + 1 });
    } else alter(message.key, { refused: why.sentence });
    return false;
  }
}
