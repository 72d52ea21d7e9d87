// The rows of one conversation. The server computes them; this class only keeps rows[id] = row, ordered by key.
// Invariant: the same frames give the same rows. A text that does not continue at its offset raises Mismatch.
import type { Change, Row, RowPage } from "./types";

/** A growing text does not continue where the stored text ends: request a snapshot. */
export class Mismatch extends Error {}

/** The length of a text in code points, as the server counts it, not in UTF-16 units. */
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

/** The first number in the key of a queued message: it has no position yet, and is shown last. */
const WAITING = 2 ** 62;

export interface Touched {
  ids: Set<string>;
  /** Rows were added, removed or moved. */
  order: boolean;
}

export class Rows {
  readonly byId = new Map<string, Row>();
  order: string[] = [];
  /** The end of the page above, or null if there are no older rows. */
  next: string | null = null;
  /** The lengths of growing texts in code points, so that no text is counted twice. */
  private lengths = new Map<string, number>();

  get all(): Row[] {
    return this.order.map((id) => this.byId.get(id)!);
  }

  /** The queued messages. */
  get waiting(): Row[] {
    return this.all.filter((row) => row.key[0] === WAITING);
  }

  /** The first row, unless it is a queued message. */
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

  /** All rows, as a snapshot for another tab. */
  get page(): RowPage {
    return { rows: this.all.filter((row) => row.key[0] !== WAITING), waiting: this.waiting, next: this.next };
  }

  /** Add the page above. Rows that exist already are newer than the page. */
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
      // The row is above the loaded rows: scrolling up loads it with its page.
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

/** The row of a search hit: the message with this number, else the last row of its turn before that number. */
export function rowOfHit(rows: Rows, seq: number, role: string): string | null {
  if (rows.byId.has(String(seq))) return String(seq);
  const kind = role === "partial" ? "assistant" : role; // the text of an answer that was cut off
  const above = rows.all.filter((row) => row.key[0] <= seq);
  return (above.findLast((row) => row.kind === kind || row.id.startsWith(`${seq}:`)) ?? above.at(-1))?.id ?? null;
}
