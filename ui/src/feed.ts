// The event stream: one connection, which is reopened at the last cursor whenever it ends.
// A cursor is `incarnation~conversation:number~...`; the server sends the complete cursor with every frame.
import { proof } from "./key";
import { urlOf } from "./paths";
import type { Connection, Frame } from "./types";

export const SILENCE_MS = 40_000;
const WAIT_MS = [200, 400, 800, 1500, 3000, 5000];
interface Cursor { incarnation: string; /** The last number per conversation, or "" to request a snapshot. */ numbers: Map<string, string> }

export function writeCursor(cursor: Cursor): string {
  return [cursor.incarnation || "-", ...[...cursor.numbers].map(([id, at]) => `${id}:${at}`)].join("~");
}

export function readCursor(text: string): Cursor {
  const [incarnation = "-", ...rest] = text.split("~");
  const numbers = new Map<string, string>();
  for (const part of rest) {
    const colon = part.lastIndexOf(":");
    if (colon > 0) numbers.set(part.slice(0, colon), part.slice(colon + 1));
  }
  return { incarnation, numbers };
}

/** Splits a text/event-stream into frames. Comments are heartbeats and are skipped. */
export class Parser {
  private rest: string[] = [];
  private end = "";

  push(text: string): { type: string; id: string; data: string }[] {
    this.rest.push(text);
    // Search for the blank line only in the new text: a snapshot of 10 MB arrives in hundreds of pieces.
    const fresh = this.end + text;
    this.end = fresh.slice(-3);
    if (!/\n\r?\n/.test(fresh)) return [];
    const blocks = this.rest.join("").split(/\r?\n\r?\n/);
    this.rest = [blocks.pop() ?? ""];
    return blocks.map(Parser.block).filter((frame) => frame.type !== "" && frame.data !== "");
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

interface FeedEvents { frame(frame: Frame): void; connection(state: Connection): void }

export class Feed {
  readonly cursor: Cursor = { incarnation: "-", numbers: new Map() };
  /** The key of this device, from a tab: a worker cannot read localStorage. */
  key = "";
  private abort: AbortController | null = null;
  private fails = 0;
  private timer: ReturnType<typeof setTimeout> | undefined;
  private stopped = true;

  constructor(private readonly events: FeedEvents, private readonly get: typeof fetch = (input, init) => fetch(input, init)) {}

  /** Open or reopen the stream: after a change of the watched conversations, or for an immediate retry. */
  open(): void {
    this.stopped = false;
    clearTimeout(this.timer);
    this.abort?.abort();
    const abort = new AbortController();
    this.abort = abort;
    // Several changes in the same tick share one connection.
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
      const cursor = encodeURIComponent(writeCursor(this.cursor));
      const answer = await this.get(urlOf(`/api/events?at=${cursor}`), { signal: abort.signal, cache: "no-store", headers: proof(this.key) });
      if (answer.status === 401 || answer.status === 403) state = "denied";
      else if (answer.status === 400) this.startOver();
      else if (answer.ok && answer.body !== null) await this.read(answer.body, abort);
    } catch {
      // The cursor holds the position; the next try continues there.
    }
    if (this.abort !== abort || this.stopped) return;
    abort.abort();
    this.events.connection(state);
    const wait = WAIT_MS[Math.min(this.fails++, WAIT_MS.length - 1)]! * (0.8 + Math.random() * 0.4);
    this.timer = setTimeout(() => this.open(), wait);
  }

  /** Reset the cursor, so that the server sends snapshots: it refused the cursor, or another user signed in. */
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
        for (const frame of parser.push(decoder.decode(value, { stream: true }))) {
          if (this.abort !== abort) return;
          this.take(frame);
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
