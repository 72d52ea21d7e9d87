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

function compareKeys(a: Row, b: Row): number {
  return a.key[0] - b.key[0] || a.key[1] - b.key[1] || a.key[2] - b.key[2] || (a.id < b.id ? -1 : a.id > b.id ? 1 : 0);
}

/** The first number in the key of a queued message: it has no position yet, and is shown last. */
const WAITING = 2 ** 62;
interface Touched { ids: Set<string>; /** Rows were added, removed or moved. */ order: boolean }

export class Rows {
  readonly byId = new Map<string, Row>();
  order: string[] = [];
  next: string | null = null; // the end of the page above, or null if there are no older rows
  /** The lengths of the growing fields of rows in code points, so that no text is counted twice. */
  private lengths = new Map<string, { text?: number; thought?: number }>();

  get all(): Row[] { return this.order.map((id) => this.byId.get(id)!); }

  /** The queued messages. */
  get waiting(): Row[] { return this.all.filter((row) => row.key[0] === WAITING); }

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
  get page(): RowPage { return { rows: this.all.filter((row) => row.key[0] !== WAITING), waiting: this.waiting, next: this.next }; }

  /** Add the page above. Rows that exist already are newer than the page. */
  older(page: RowPage): void {
    this.next = page.next;
    const added = page.rows.filter((row) => !this.byId.has(row.id)).sort(compareKeys);
    for (const row of added) this.byId.set(row.id, row);
    const [last, first] = [added.at(-1), this.byId.get(this.order[0] ?? "")];
    if (last !== undefined && first !== undefined && compareKeys(last, first) > 0) this.sort();
    else this.order = [...added.map((row) => row.id), ...this.order];
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

  private grow({ id, offset, text, field = "text" }: Extract<Change, { type: "grow" }>, touched: Touched): void {
    const row = this.byId.get(id);
    if (row === undefined) throw new Mismatch(id);
    const held = row[field] ?? "";
    const lengths = this.lengths.get(id) ?? {};
    const length = lengths[field] ?? codePoints(held);
    if (length !== offset) throw new Mismatch(id);
    this.byId.set(id, { ...row, [field]: held + text });
    this.lengths.set(id, { ...lengths, [field]: length + codePoints(text) });
    touched.ids.add(id);
  }

  private sort(): void { this.order = [...this.byId.values()].sort(compareKeys).map((row) => row.id); }
}

/** The row of a search hit: the message with this number, else the last row of its turn before that number. */
export function rowOfHit(rows: Rows, seq: number, role: string): string | null {
  if (rows.byId.has(String(seq))) return String(seq);
  const kind = role === "partial" ? "assistant" : role; // the text of an answer that was cut off
  const above = rows.all.filter((row) => row.key[0] <= seq);
  return (above.findLast((row) => row.kind === kind || row.id.startsWith(`${seq}:`)) ?? above.at(-1))?.id ?? null;
}

const OPEN = new Set(["streaming", "running", "asks", "approved", "waiting"]);
const WORK_KINDS = new Set<Row["kind"]>(["tool", "assistant", "notice", "marker"]);

/**
 * The work of finished turns: the rows from the first to the last tool call of a turn that ended with an answer and made several calls.
 * The entry of the first row has the ids of all of them; the entries of the others are empty.
 */
export function foldTurns(rows: Row[]): Map<string, string[]> {
  const found = new Map<string, string[]>();
  let turn: Row[] = [];
  const end = () => {
    const calls = turn.filter((row) => row.kind === "tool");
    const [first, last] = [turn.indexOf(calls[0]!), turn.indexOf(calls.at(-1)!)];
    const answered = turn.slice(last + 1).some((row) => row.kind === "assistant" && (row.text ?? "") !== "" && ["", "full"].includes(row.state ?? ""));
    if (calls.length < 2 || !answered || turn.some((row) => OPEN.has(row.state ?? ""))) return;
    const ids = turn.slice(first, last + 1).filter((row) => WORK_KINDS.has(row.kind)).map((row) => row.id);
    ids.forEach((id, n) => found.set(id, n === 0 ? ids : []));
  };
  for (const row of rows) {
    if (row.kind !== "user") turn.push(row);
    else if (row.state !== "queued" && row.state !== "steering") {
      end();
      turn = [];
    }
  }
  end();
  return found;
}

/** A row, the folded work of a turn, or the first line of a day. */
export interface Item { key: string; id: string; work?: string[]; day?: Date }

/** What is shown for the rows of a view, in order. A message that waited for its answer is older than the row above it and begins no day. */
export function itemsOf(rows: Row[], folds: ReadonlyMap<string, string[]>, attempts: ReadonlyMap<string, string[]>, now = new Date()): Item[] {
  const items: Item[] = [];
  let last = "";
  for (const { id, at } of rows) {
    const work = folds.get(id);
    if (work?.length === 0 || (work === undefined && attempts.get(id)?.length === 0)) continue;
    const time = new Date(at / 1000);
    const day = `${time.getFullYear()}-${String(time.getMonth() + 1).padStart(2, "0")}-${String(time.getDate()).padStart(2, "0")}`;
    if (day > last && (last !== "" || time.toDateString() !== now.toDateString())) items.push({ key: `day:${day}`, id: "", day: time });
    if (day > last) last = day;
    items.push(work === undefined ? { key: id, id } : { key: `work:${id}`, id, work });
  }
  return items;
}
