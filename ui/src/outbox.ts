// Messages that the server has not confirmed. They stay in the browser's storage until their 202 came, and are sent
// again by themselves; the Idempotency-Key makes it harmless to send one twice. Each goes to its conversation in order.
// Each is an entry of its own there, so that no tab writes over what another one keeps. It is sent and shown only while
// the user who wrote it is signed in.
import { signal } from "@preact/signals";
import { call, conversationPath, isStillMe, me, newKey, Problem, proof } from "./api";
import { recallAll, remember } from "./memory";
import type { Attached, How, Listed } from "./types";

const STORED = "tenax.outbox.";
const WAIT_MS = [500, 1000, 2000, 4000, 8000, 15_000];

export interface Outgoing {
  key: string;
  /** Who wrote it. One of an earlier version belongs to the user who is signed in when it is first seen. */
  user?: string;
  /** Milliseconds of this browser's clock; gives the order of what waits. */
  written: number;
  /** null: a conversation has to be opened for it first. */
  conversation: string | null;
  leaving: string | null;
  text: string;
  attachments?: Attached[];
  how: How;
  /** The greatest number of a message of the person that this page knew when it was written. */
  after: number;
  tries: number;
  /** Why the server refused it for good. */
  refused?: string;
  /** Its number, once the server took it; shown until the stream brings its row. */
  seq?: number;
}

const isMine = (message: Outgoing): boolean => (message.user ?? "") === me();

export const outbox = signal<Outgoing[]>(load());

function load(): Outgoing[] {
  const held = recallAll(STORED).flatMap((each) => {
    try {
      const message = JSON.parse(each) as Outgoing;
      if (message.user === undefined && me() !== "") {
        message.user = me();
        remember(STORED + message.key, JSON.stringify(message));
      }
      return isMine(message) ? [message] : [];
    } catch {
      return [];
    }
  });
  return held.sort((a, b) => a.written - b.written || (a.key < b.key ? -1 : 1));
}

/** Messages beyond the browser's quota: only this tab holds them. */
const unsaved = new Set<string>();

/** True if the browser keeps it; else it lives as long as the tab. */
function keep(message: Outgoing): boolean {
  const known = outbox.value.some((each) => each.key === message.key);
  outbox.value = known
    ? outbox.value.map((each) => (each.key === message.key ? message : each))
    : [...outbox.value, message];
  const kept = remember(STORED + message.key, message.seq === undefined ? JSON.stringify(message) : "");
  if (kept) unsaved.delete(message.key);
  else unsaved.add(message.key);
  return kept;
}

/** Take over what other tabs sent or added. */
function refresh(): void {
  const ours = outbox.value.filter((each) => isMine(each) && (each.seq !== undefined || unsaved.has(each.key)));
  outbox.value = [...ours, ...load().filter((each) => !ours.some((one) => one.key === each.key))];
}

function alter(key: string, fields: Partial<Outgoing>): void {
  const message = outbox.value.find((each) => each.key === key);
  if (message !== undefined) keep({ ...message, ...fields });
}

export function discard(key: string): void {
  outbox.value = outbox.value.filter((each) => each.key !== key);
  unsaved.delete(key);
  remember(STORED + key, "");
}

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
  refresh(); // somebody may have signed in meanwhile
  window.addEventListener("storage", (event) => {
    if (event.key === null || event.key.startsWith(STORED)) refresh();
  });
  window.addEventListener("online", () => void pump(true));
  void pump();
}

export function submit(message: Omit<Outgoing, "key" | "user" | "written" | "tries">): boolean {
  const written = Math.max(Date.now(), (outbox.value.at(-1)?.written ?? 0) + 1);
  const kept = keep({ ...message, key: newKey(), user: me(), written, tries: 0 });
  void pump();
  return kept;
}

export function retry(key: string): void {
  const message = outbox.value.find((each) => each.key === key);
  if (message === undefined) return;
  const { refused: _refused, ...rest } = message;
  keep({ ...rest, tries: 0 });
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
  if (heads.size === 0 || !isStillMe()) return;
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
  const own = proof();
  if (!isStillMe()) return false; // another tab signed somebody else in; this one is about to load again
  try {
    let { conversation } = message;
    if (conversation === null) {
      const body = message.leaving === null ? {} : { leaving: message.leaving };
      const listed = await call<Listed>("POST", "/api/conversations", body, own);
      conversation = listed.id;
      const id = conversation; // what else was written there waits for the same conversation
      outbox.value.filter((each) => each.conversation === null).forEach((each) => keep({ ...each, conversation: id }));
      events.opened(listed, message.key);
    }
    const path = conversationPath(conversation, "/messages");
    const attachments = (message.attachments ?? []).map(({ blob, name }) => ({ blob, name }));
    const body = { text: message.text, how: message.how, ...(attachments.length > 0 && { attachments }) };
    const { seq } = await call<{ seq: number }>("POST", path, body, { ...own, "Idempotency-Key": message.key });
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
