// Drafts: the text and attachments of the next message, per conversation and for a new one. Every user of a browser has
// separate drafts.
import { signal, type Signal } from "@preact/signals";
import { me } from "./api";
import { keysOf, recall, remember } from "./browserStorage";
import type { Attached } from "./types";

/**
 * An attachment of a draft. `sent` is the upload progress from 0 to 1; `file` is lost after a reload. `refused` is true if another
 * attempt cannot succeed. `pasted` is true for a long text that was pasted.
 */
export type Chip = { id: number; name: string; bytes: number; sent: number; thumb?: string; attached?: Attached; file?: File; error?: string; refused?: boolean; pasted?: boolean };
const WORDS = "tenax.draft.";
const FILES = "tenax.attached.";
const placeOf = (conversation: string | null): string => `${me() === "" ? "" : `${encodeURIComponent(me())}/`}${conversation ?? "new"}`;
const wordsKey = (conversation: string | null): string => WORDS + placeOf(conversation);
const filesKey = (conversation: string | null): string => FILES + placeOf(conversation);

/** Assign drafts of an older version, which have no user, to the user who is signed in now. */
export function adoptDrafts(): void {
  if (me() === "") return;
  for (const prefix of [WORDS, FILES])
    for (const key of keysOf(prefix).filter((name) => !name.includes("/"))) {
      remember(prefix + placeOf(key.slice(prefix.length)), recall(key) ?? "");
      remember(key, "");
    }
}

export const wordsOf = (conversation: string | null): string => recall(wordsKey(conversation)) ?? "";
export const keepWords = (conversation: string | null, text: string): void => void remember(wordsKey(conversation), text);

/** The attachments of a draft. Uploaded ones survive a reload. */
export class Files {
  readonly chips: Signal<Chip[]>;

  constructor(private key: string) {
    const held = JSON.parse(recall(key) || "[]") as Attached[];
    this.chips = signal(held.map(chipOf));
  }

  put(next: Chip[]): void {
    this.chips.value = next;
    const done = next.flatMap(({ attached, thumb }) => (attached === undefined ? [] : [{ ...attached, ...(thumb !== undefined && { thumb }) }]));
    remember(this.key, done.length === 0 ? "" : JSON.stringify(done));
  }

  /** Move the attachments to another draft. Running uploads end there too. */
  move(key: string): void {
    remember(this.key, "");
    this.key = key;
    this.put(this.chips.value);
  }
}

let count = 0;
export const newId = (): number => ++count;
export const chipOf = (attached: Attached): Chip => ({ ...attached, id: newId(), sent: 1, attached });
const known = new Map<string, Files>();

export function filesOf(conversation: string | null): Files {
  const key = filesKey(conversation);
  const found = known.get(key) ?? new Files(key);
  known.set(key, found);
  return found;
}

/** Move the draft of a new conversation to the conversation that was created for it. */
export function carry(to: string): void {
  keepWords(to, wordsOf(null));
  keepWords(null, "");
  const files = filesOf(null);
  files.move(filesKey(to));
  known.delete(filesKey(null));
  known.set(filesKey(to), files);
}
