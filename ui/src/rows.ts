// The rows of one conversation. The server folds; this only keeps rows[id] = row, in the order of their keys.
// What stays true: after the same frames, the same rows. A text that does not fit raises Mismatch, and nothing guesses.
import type { Change, Row, RowPage } from "./types";

/** A growing text does not go on where ours ends: ask for the whole again. */
export class Mismatch extends Error {}

/** Characters as the server counts them: code points, not UTF-16 units. */
export function codePoints(text: string): number {
  let count = text.length;
  for (let n = 0; n < text.length - 1; n++) {
    const unit = text.charCodeAt(n);
    if (unit < 0xd800 || unit > 0xdbff) continue;
    const next = text.charCodeAt(n + 1);
    if (next >= 0xdc00 && next <= 0xdfff) {
      count--;
      n++;
    }
  }
  return count;
}

export function compareKeys(a: Row, b: Row): number {
  return a.key[0] - b.key[0] || a.key[1] - b.key[1] || a.key[2] - b.key[2] || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0);
}

/** Stands in place of a number in the key of a message that waits: it has no place yet, and is shown last. */
const WAITING = 2 ** 62;

export interface Touched {
  ids: Set<string>;
  /** Rows came, went or moved. */
  order: boolean;
}

export class Rows {
  readonly byId = new Map<string, Row>();
  order: string[] = [];
  /** Where the page above ends, or null: there are no older rows than these. */
  next: string | null = null;
  /** Code points of the texts that grow, so that no text is counted twice. */
  private lengths = new Map<string, number>();

  get all(): Row[] {
    return this.order.map((id) => this.byId.get(id)!);
  }

  /** The messages that wait for an answer. */
  get waiting(): Row[] {
    return this.all.filter((row) => row.key[0] === WAITING);
  }

  /** The first row, unless it waits. */
  get oldest(): Row | undefined {
    const first = this.byId.get(this.order[0] ?? "");
    return first?.key[0] === WAITING ? undefined : first;
  }

  snapshot(page: RowPage): void {
    this.byId.clear();
    this.lengths.clear();
    this.next = page.next;
    for (const row of [...page.rows, ...page.waiting]) this.byId.set(row.id, row);
    this.sort();
  }

  /** All that is held, as a snapshot that another takes. */
  get page(): RowPage {
    return { rows: this.all.filter((row) => row.key[0] !== WAITING), waiting: this.waiting, next: this.next };
  }

  /** The page above. Rows that are held already are newer than it. */
  older(page: RowPage): void {
    this.next = page.next;
    for (const row of page.rows) if (!this.byId.has(row.id)) this.byId.set(row.id, row);
    this.sort();
  }

  apply(changes: Change[]): Touched {
    const touched: Touched = { ids: new Set(), order: false };
    for (const change of changes) {
      if (change.type === "put") this.put(change.row, touched);
      else if (change.type === "grow") this.grow(change, touched);
      else if (this.byId.delete(change.id)) {
        this.lengths.delete(change.id);
        touched.ids.add(change.id);
        touched.order = true;
      }
    }
    if (touched.order) this.sort();
    return touched;
  }

  private put(row: Row, touched: Touched): void {
    const held = this.byId.get(row.id);
    if (held === undefined) {
      const oldest = this.oldest;
      // It stands above what is held: whoever scrolls there fetches it with its neighbours.
      if (this.next !== null && oldest !== undefined && compareKeys(row, oldest) < 0) return;
    }
    if (held === undefined || compareKeys(held, row) !== 0) touched.order = true;
    this.byId.set(row.id, row);
    this.lengths.delete(row.id);
    touched.ids.add(row.id);
  }

  private grow(change: { id: string; offset: number; text: string }, touched: Touched): void {
    const row = this.byId.get(change.id);
    if (row === undefined) throw new Mismatch(change.id);
    const text = row.text ?? "";
    const length = this.lengths.get(change.id) ?? codePoints(text);
    if (length !== change.offset) throw new Mismatch(change.id);
    this.byId.set(change.id, { ...row, text: text + change.text });
    this.lengths.set(change.id, length + codePoints(change.text));
    touched.ids.add(change.id);
  }

  private sort(): void {
    this.order = [...this.byId.values()].sort(compareKeys).map((row) => row.id);
  }
}

/** The row that a search hit means: a message by its number, else what its turn wrote last before that number. */
export function rowOfHit(rows: Rows, seq: number, role: string): string | null {
  if (rows.byId.has(String(seq))) return String(seq);
  const kind = role === "partial" ? "assistant" : role; // an answer that was cut off
  const above = rows.all.filter((row) => row.key[0] <= seq);
  return (above.findLast((row) => row.kind === kind || row.id.startsWith(`${seq}:`)) ?? above.at(-1))?.id ?? null;
}
