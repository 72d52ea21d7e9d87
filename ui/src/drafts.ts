// What is half written: words and files for the next message of a conversation, or of one that is still to be opened.
// Each user of a browser has their own.
import { signal, type Signal } from "@preact/signals";
import { me } from "./api";
import { keysOf, recall, remember } from "./memory";
import type { Attached } from "./types";

/** `sent` is how much of it was, from 0 to 1; `file` is not known any more after a reload. */
export type Chip = { id: number; name: string; bytes: number; sent: number; attached?: Attached; file?: File; error?: string };

const WORDS = "tenax.draft.";
const FILES = "tenax.attached.";
const placeOf = (conversation: string | null): string => `${me() === "" ? "" : `${encodeURIComponent(me())}/`}${conversation ?? "new"}`;
const wordsKey = (conversation: string | null): string => WORDS + placeOf(conversation);
const filesKey = (conversation: string | null): string => FILES + placeOf(conversation);

/** What an earlier version kept without a name belongs to the user who is signed in now. */
export function adoptDrafts(): void {
  if (me() === "") return;
  for (const prefix of [WORDS, FILES])
    for (const key of keysOf(prefix).filter((each) => !each.includes("/"))) {
      remember(prefix + placeOf(key.slice(prefix.length)), recall(key) ?? "");
      remember(key, "");
    }
}

export const wordsOf = (conversation: string | null): string => recall(wordsKey(conversation)) ?? "";
export const keepWords = (conversation: string | null, text: string): void => void remember(wordsKey(conversation), text);

/** What waits for the next message. What was uploaded is still known after a reload. */
export class Files {
  readonly chips: Signal<Chip[]>;

  constructor(private key: string) {
    const held = JSON.parse(recall(key) || "[]") as Attached[];
    this.chips = signal(held.map(chipOf));
  }

  put(next: Chip[]): void {
    this.chips.value = next;
    const done = next.flatMap((each) => each.attached ?? []);
    remember(this.key, done.length === 0 ? "" : JSON.stringify(done));
  }

  /** What is still being uploaded arrives there too. */
  move(key: string): void {
    remember(this.key, "");
    this.key = key;
    this.put(this.chips.value);
  }
}

let count = 0;
export const newId = (): number => ++count;
export const chipOf = (each: Attached): Chip => ({ ...each, id: newId(), sent: 1, attached: each });

const known = new Map<string, Files>();

export function filesOf(conversation: string | null): Files {
  const key = filesKey(conversation);
  const found = known.get(key) ?? new Files(key);
  known.set(key, found);
  return found;
}

/** The conversation for which something is half written was opened. */
export function carry(to: string): void {
  keepWords(to, wordsOf(null));
  keepWords(null, "");
  const files = filesOf(null);
  files.move(filesKey(to));
  known.delete(filesKey(null));
  known.set(filesKey(to), files);
}
