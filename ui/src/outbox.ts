// Messages that the server has not confirmed. They stay in localStorage until the server answers 202, and are sent again
// automatically; the Idempotency-Key makes a second delivery harmless. Messages of a conversation are sent in order.
// Every message has its own storage key, so that tabs do not overwrite each other. A message is sent and shown only while
// the user who wrote it is signed in.
import { signal } from "@preact/signals";
import { call, conversationPath, isStillMe, me, newKey, Problem } from "./api";
import { recallAll, remember } from "./browserStorage";
import { proof } from "./key";
import { t } from "./text";
import type { Choice } from "./choices";
import type { Attached, How, Listed } from "./types";

const STORED = "tenax.outbox.";
const WAIT_MS = [500, 1000, 2000, 4000, 8000, 15_000];

export interface Outgoing {
  key: string;
  user?: string; // The author. A message from an older version belongs to the user who is signed in when it is first read.
  tab?: string; // The tab in which it was written. Whichever tab sends it, only this tab opens a conversation that is created for it.
  written: number; // Milliseconds of this browser's clock; defines the order of sending.
  conversation: string | null; // null: a new conversation has to be created first.
  leaving: string | null;
  choice?: Choice; // the model, mode and project of a new conversation
  text: string;
  attachments?: Attached[];
  how: How;
  after: number; // the number of the last user message that the page knew when this message was written
  tries: number;
  refused?: string; // the reason of a final refusal
  seq?: number; // the number of the message, after the server accepted it
}

/** The name of this tab, also after a reload. */
const tab = nameTab();

function nameTab(): string {
  try {
    const name = sessionStorage.getItem("tenax.tab") ?? newKey();
    sessionStorage.setItem("tenax.tab", name);
    return name;
  } catch {
    return newKey(); // sessionStorage is forbidden
  }
}

const isMine = (message: Outgoing): boolean => (message.user ?? "") === me();
export const outbox = signal<Outgoing[]>(load());

function load(): Outgoing[] {
  const held = recallAll(STORED).flatMap((stored) => {
    try {
      const message = JSON.parse(stored) as Outgoing;
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

/** Messages that exceed the browser's quota: only this tab has them. */
const unsaved = new Set<string>();

/** Store a message. Returns false if only this tab has it. */
function keep(message: Outgoing): boolean {
  const known = outbox.value.some((other) => other.key === message.key);
  outbox.value = known ? outbox.value.map((other) => (other.key === message.key ? message : other)) : [...outbox.value, message];
  const kept = remember(STORED + message.key, message.seq === undefined ? JSON.stringify(message) : "");
  if (kept) unsaved.delete(message.key);
  else unsaved.add(message.key);
  return kept;
}

/** Read the changes of other tabs. */
function refresh(): void {
  const ours = outbox.value.filter((message) => isMine(message) && (message.seq !== undefined || unsaved.has(message.key)));
  outbox.value = [...ours, ...load().filter((message) => !ours.some((one) => one.key === message.key))];
}

function alter(key: string, fields: Partial<Outgoing>): void {
  const message = outbox.value.find((stored) => stored.key === key);
  if (message !== undefined) keep({ ...message, ...fields });
}

export function discard(key: string): void {
  outbox.value = outbox.value.filter((message) => message.key !== key);
  unsaved.delete(key);
  remember(STORED + key, "");
}

interface OutboxEvents { /** A conversation was created for a message of this tab. */ opened(conversation: string, listed?: Listed): void; denied(): void }
let events: OutboxEvents = { opened: () => undefined, denied: () => undefined };
let timer: ReturnType<typeof setTimeout> | undefined;
let busy = false;

export function startOutbox(heard: OutboxEvents): void {
  events = heard;
  refresh(); // another user may have signed in
  window.addEventListener("storage", (event) => {
    if (event.key !== null && !event.key.startsWith(STORED)) return;
    refresh();
    const [before, now] = [event.oldValue, event.newValue].map((value) => (value ? (JSON.parse(value) as Outgoing) : undefined));
    // Another tab created the conversation for a message of this tab.
    if (before?.conversation === null && now?.tab === tab && now.conversation !== null) events.opened(now.conversation);
  });
  window.addEventListener("online", () => void pump(true));
  void pump();
}

export function submit(message: Omit<Outgoing, "key" | "user" | "written" | "tries">): boolean {
  const written = Math.max(Date.now(), (outbox.value.at(-1)?.written ?? 0) + 1);
  const kept = keep({ ...message, key: newKey(), user: me(), tab, written, tries: 0 });
  void pump();
  return kept;
}

export function retry(key: string): void {
  const message = outbox.value.find((stored) => stored.key === key);
  if (message === undefined) return;
  const { refused: _refused, ...rest } = message;
  keep({ ...rest, tries: 0 });
  void pump(true);
}

/** The earliest time of the next try, by key. */
const due = new Map<string, number>();

/** Send all waiting messages; with `now` without waiting for the backoff. Tabs take turns if the browser has locks. */
export async function pump(now = false): Promise<void> {
  if (now) due.clear();
  if (busy) return;
  busy = true;
  clearTimeout(timer);
  try {
    // `locks` is missing on plain http except on localhost. Two tabs may then send the same message; the server stores it once.
    if ("locks" in navigator) await navigator.locks.request(STORED, sendAll);
    else await sendAll();
  } finally {
    busy = false;
  }
  const heads = new Map<string | null, Outgoing>();
  for (const message of outbox.value.filter(isWaiting)) if (!heads.has(message.conversation)) heads.set(message.conversation, message);
  if (heads.size === 0 || !isStillMe()) return;
  const next = Math.min(...[...heads.values()].map((message) => due.get(message.key) ?? 0));
  timer = setTimeout(() => void pump(), Math.max(0, next - Date.now()));
}

const isWaiting = (message: Outgoing): boolean => message.seq === undefined && message.refused === undefined;

async function sendAll(): Promise<void> {
  refresh();
  const stuck = new Set<string | null>();
  for (const { key } of outbox.value) {
    const message = outbox.value.find((stored) => stored.key === key);
    if (message === undefined || !isWaiting(message) || stuck.has(message.conversation)) continue;
    if ((due.get(key) ?? 0) > Date.now() || !(await send(message))) stuck.add(message.conversation);
  }
}

async function send(message: Outgoing): Promise<boolean> {
  const own = proof();
  if (!isStillMe()) return false; // another tab signed in another user; this tab is about to reload
  try {
    let { conversation } = message;
    if (conversation === null) {
      const body = { ...message.choice, ...(message.leaving !== null && { leaving: message.leaving }) };
      const listed = await call<Listed>("POST", "/api/conversations", body, own);
      conversation = listed.id;
      const id = conversation; // other messages without a conversation belong to the same new one
      outbox.value.filter((other) => other.conversation === null).forEach((other) => keep({ ...other, conversation: id }));
      if ((message.tab ?? tab) === tab) events.opened(id, listed);
    }
    const path = conversationPath(conversation, "/messages");
    const attachments = (message.attachments ?? []).map(({ blob, name }) => ({ blob, name }));
    const body = { text: message.text, how: message.how, ...(attachments.length > 0 && { attachments }) };
    const { seq } = await call<{ seq: number }>("POST", path, body, { ...own, "Idempotency-Key": message.key });
    alter(message.key, { seq });
    return true;
  } catch (error) {
    const why = error instanceof Problem ? error : new Problem(0, t("error.not_sent"));
    if (why.status === 401) events.denied();
    if (why.passing) {
      due.set(message.key, Date.now() + WAIT_MS[Math.min(message.tries, WAIT_MS.length - 1)]!);
      alter(message.key, { tries: message.tries + 1 });
    } else alter(message.key, { refused: why.sentence });
    return false;
  }
}
