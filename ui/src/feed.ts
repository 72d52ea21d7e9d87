// The event stream: one connection, opened again whenever it ends, at the number that was reached.
// A cursor is `incarnation~conversation:number~...`; the server sends the whole of it with every frame.
import { proof } from "./api";
import type { Connection, Frame } from "./types";

export const SILENCE_MS = 40_000;
const WAIT_MS = [200, 400, 800, 1500, 3000, 5000];

export interface Cursor {
  incarnation: string;
  /** The number reached, or "" to get a snapshot. */
  numbers: Map<string, string>;
}

export function writeCursor(cursor: Cursor): string {
  return [cursor.incarnation || "-", ...[...cursor.numbers].map(([id, at]) => `${id}:${at}`)].join("~");
}

export function readCursor(text: string): Cursor {
  const [incarnation = "-", ...rest] = text.split("~");
  const numbers = new Map<string, string>();
  for (const each of rest) {
    const colon = each.lastIndexOf(":");
    if (colon > 0) numbers.set(each.slice(0, colon), each.slice(colon + 1));
  }
  return { incarnation, numbers };
}

/** Cuts the bytes of a text/event-stream into frames. Comments are heartbeats and give none. */
export class Parser {
  private rest: string[] = [];
  private end = "";

  push(text: string): { type: string; id: string; data: string }[] {
    this.rest.push(text);
    // Look for the blank line in what is new only: a snapshot of 10 MB comes in hundreds of pieces.
    const fresh = this.end + text;
    this.end = fresh.slice(-3);
    if (!/\n\r?\n/.test(fresh)) return [];
    const blocks = this.rest.join("").split(/\r?\n\r?\n/);
    this.rest = [blocks.pop() ?? ""];
    return blocks.map(Parser.block).filter((each) => each.type !== "" && each.data !== "");
  }

  private static block(block: string): { type: string; id: string; data: string } {
    const frame = { type: "", id: "", data: "" };
    const data: string[] = [];
    for (const line of block.split(/\r?\n/)) {
      const value = line.slice(line.indexOf(":") + 1).replace(/^ /, "");
      if (line.startsWith("event:")) frame.type = value;
      else if (line.startsWith("id:")) frame.id = value;
      else if (line.startsWith("data:")) data.push(value);
    }
    frame.data = data.join("\n");
    return frame;
  }
}

export interface FeedEvents {
  frame(frame: Frame): void;
  connection(state: Connection): void;
}

export class Feed {
  readonly cursor: Cursor = { incarnation: "-", numbers: new Map() };
  /** The key of this device. A worker cannot read the page's storage. */
  key = "";
  private abort: AbortController | null = null;
  private fails = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private stopped = true;

  constructor(
    private readonly events: FeedEvents,
    private readonly get: typeof fetch = (input, init) => fetch(input, init),
  ) {}

  /** Open, or close and open again: after a change of what is watched, or when it is worth another try at once. */
  open(): void {
    this.stopped = false;
    clearTimeout(this.timer);
    this.abort?.abort();
    const abort = new AbortController();
    this.abort = abort;
    // Several changes of one moment share one connection.
    this.timer = setTimeout(() => void this.follow(abort), 0);
  }

  close(): void {
    this.stopped = true;
    clearTimeout(this.timer);
    this.abort?.abort();
    this.abort = null;
  }

  private async follow(abort: AbortController): Promise<void> {
    let state: Connection = "lost";
    try {
      const at = encodeURIComponent(writeCursor(this.cursor));
      const answer = await this.get(`/api/events?at=${at}`, { signal: abort.signal, cache: "no-store", headers: proof(this.key) });
      if (answer.status === 401 || answer.status === 403) state = "denied";
      else if (answer.status === 400) this.startOver();
      else if (answer.ok && answer.body !== null) await this.read(answer.body, abort);
    } catch {
      // However it ended: what was reached is in the cursor, and the next try goes on there.
    }
    if (this.abort !== abort || this.stopped) return;
    abort.abort();
    this.events.connection(state);
    const wait = WAIT_MS[Math.min(this.fails++, WAIT_MS.length - 1)]! * (0.8 + Math.random() * 0.4);
    this.timer = setTimeout(() => this.open(), wait);
  }

  /** The server does not understand our cursor, or another person signed in: hold nothing, and get everything anew. */
  startOver(): void {
    this.cursor.incarnation = "-";
    for (const id of this.cursor.numbers.keys()) this.cursor.numbers.set(id, "");
  }

  private async read(body: ReadableStream<Uint8Array>, abort: AbortController): Promise<void> {
    const parser = new Parser();
    const reader = body.getReader();
    const decoder = new TextDecoder();
    let silence: ReturnType<typeof setTimeout> | undefined;
    try {
      for (;;) {
        clearTimeout(silence);
        silence = setTimeout(() => abort.abort(), SILENCE_MS);
        const { done, value } = await reader.read();
        if (done || this.abort !== abort) return;
        for (const each of parser.push(decoder.decode(value, { stream: true }))) {
          if (this.abort !== abort) return;
          this.take(each);
        }
      }
    } finally {
      clearTimeout(silence);
      reader.cancel().catch(() => undefined);
    }
  }

  private take(raw: { type: string; id: string; data: string }): void {
    const frame = { ...(JSON.parse(raw.data) as object), type: raw.type } as Frame;
    if (frame.type === "hello") {
      this.fails = 0;
      this.events.connection("live");
    }
    if (raw.id !== "") {
      const cursor = readCursor(raw.id);
      this.cursor.incarnation = cursor.incarnation;
      for (const [id, at] of cursor.numbers) if (this.cursor.numbers.has(id)) this.cursor.numbers.set(id, at);
    }
    this.events.frame(frame);
  }
}
