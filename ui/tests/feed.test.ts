import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";
import { Feed, Parser, readCursor, SILENCE_MS, writeCursor } from "../src/feed";
import { Hub, type Port } from "../src/hub";
import type { Connection, Frame, FromHub, Row } from "../src/types";

/** A server whose connections the test writes into. */
class Server {
  asked: string[] = [];
  keys: (string | null)[] = [];
  status = 200;
  private streams: ReadableStreamDefaultController<Uint8Array>[] = [];

  get = ((input: string, init: RequestInit) => {
    this.asked.push(new URL(input, "http://x").searchParams.get("at") ?? "");
    this.keys.push(new Headers(init.headers).get("Tenax-Key"));
    if (this.status !== 200) return Promise.resolve(new Response("", { status: this.status }));
    const body = new ReadableStream<Uint8Array>({
      start: (controller) => {
        this.streams.push(controller);
        init.signal?.addEventListener("abort", () => {
          try {
            controller.error(new Error("aborted"));
          } catch {
            // It ended before.
          }
        });
      },
    });
    return Promise.resolve(new Response(body));
  }) as unknown as typeof fetch;

  async say(type: string, id: string, data: object): Promise<void> {
    this.streams.at(-1)!.enqueue(new TextEncoder().encode(`event: ${type}\nid: ${id}\ndata: ${JSON.stringify(data)}\n\n`));
    await vi.advanceTimersByTimeAsync(1);
  }

  async die(): Promise<void> {
    this.streams.at(-1)!.error(new Error("gone"));
    await vi.advanceTimersByTimeAsync(1);
  }
}

const row = (id: string, text: string): Row => ({ id, key: [Number(id), 0, 0], kind: "assistant", at: 0, text });

beforeEach(() => void vi.useFakeTimers());
afterEach(() => void vi.useRealTimers());

describe("the parser", () => {
  it("gives whole frames, however the bytes are cut", () => {
    const parser = new Parser();
    const text = 'event: list\nid: i~c:1\ndata: {"a":"x"}\n\n: beat\n\nevent: bye\nid: j\ndata: {}\n\n';
    const found = [...text].flatMap((each) => parser.push(each));
    expect(found).toEqual([{ type: "list", id: "i~c:1", data: '{"a":"x"}' }, { type: "bye", id: "j", data: "{}" }]);
    expect(new Parser().push(text)).toEqual(found);
  });
});

it("a cursor is read as it was written", () => {
  const text = "inc_9~c_1:120~c_2:";
  expect(writeCursor(readCursor(text))).toBe(text);
  expect(writeCursor({ incarnation: "", numbers: new Map([["c_1", ""]]) })).toBe("-~c_1:");
});

describe("the feed", () => {
  const open = () => {
    const server = new Server();
    const frames: Frame[] = [];
    const states: Connection[] = [];
    const feed = new Feed({ frame: (each) => frames.push(each), connection: (each) => states.push(each) }, server.get);
    feed.open();
    return { server, frames, states, feed };
  };

  it("opens again at the number it reached", async () => {
    const { server, states, feed } = open();
    feed.cursor.numbers.set("c_1", "");
    await vi.advanceTimersByTimeAsync(1);
    await server.say("hello", "i~c_1:", { incarnation: "i" });
    await server.say("changes", "i~c_1:7", { conversation: "c_1", at: 7, changes: [] });
    await server.die();
    await vi.advanceTimersByTimeAsync(1000);
    expect(server.asked).toEqual(["-~c_1:", "i~c_1:7"]);
    await server.say("hello", "i~c_1:7", {});
    expect(states).toEqual(["live", "lost", "live"]);
    feed.close();
  });

  it("takes a long silence for a loss", async () => {
    const { server, states, feed } = open();
    await vi.advanceTimersByTimeAsync(1);
    await server.say("hello", "i", {});
    await vi.advanceTimersByTimeAsync(SILENCE_MS + 1000);
    expect(states).toEqual(["live", "lost"]);
    expect(server.asked.length).toBe(2);
    feed.close();
  });

  it("says that it is denied, and goes on trying", async () => {
    const { server, states, feed } = open();
    server.status = 401;
    await vi.advanceTimersByTimeAsync(3000);
    expect(new Set(states)).toEqual(new Set(["denied"]));
    expect(server.asked.length).toBeGreaterThan(2);
    feed.close();
  });
});

describe("the hub", () => {
  const tab = (hub: Hub) => {
    const heard: FromHub[] = [];
    const port: Port = { post: (message) => heard.push(message) };
    hub.hear(port, { type: "join", key: "k1" });
    const frames = () => heard.flatMap((each) => (each.type === "frame" ? [each.frame] : []));
    return { port, frames };
  };

  /** A hub with one tab that watches a conversation. */
  const watched = async () => {
    const server = new Server();
    const hub = new Hub(server.get);
    const one = tab(hub);
    hub.hear(one.port, { type: "watch", conversation: "c_1" });
    await vi.advanceTimersByTimeAsync(1);
    const rows = (next: string | null = null) => server.say("rows", "i~c_1:5", { conversation: "c_1", at: 5, rows: [row("3", "ab")], waiting: [], next });
    return { server, hub, one, rows };
  };

  it("gives a second tab the rows it holds, without a second stream", async () => {
    const { server, hub, one, rows } = await watched();
    expect(server.asked).toEqual(["-~c_1:"]);
    await server.say("hello", "i~c_1:", {});
    await rows("3.0.0");
    await server.say("changes", "i~c_1:6", { conversation: "c_1", at: 6, changes: [{ type: "grow", id: "3", offset: 2, text: "c" }] });
    const two = tab(hub);
    hub.hear(two.port, { type: "watch", conversation: "c_1" });
    await vi.advanceTimersByTimeAsync(1);
    expect(two.frames().at(-1)).toMatchObject({ type: "rows", rows: [{ id: "3", text: "abc" }], next: "3.0.0" });
    expect(server.asked.length).toBe(1);
    hub.hear(one.port, { type: "bye" });
    hub.hear(two.port, { type: "bye" });
  });

  it("sends the key that a tab tells, and holds nothing of whoever was signed in before", async () => {
    const { server, hub, one, rows } = await watched();
    await rows();
    await server.say("list", "i~c_1:5", { conversations: [{ id: "c_1" }], gone: [], reset: true });
    hub.hear(one.port, { type: "key", key: "k2" });
    await vi.advanceTimersByTimeAsync(1);
    expect(server.keys).toEqual(["k1", "k2"]);
    expect(server.asked.at(-1)).toBe("-~c_1:");
    const heard: FromHub[] = [];
    hub.hear({ post: (message) => heard.push(message) }, { type: "join", key: "k2" });
    expect(heard.filter((each) => each.type === "frame")).toEqual([]);
  });

  it("asks for the whole again when a text does not fit", async () => {
    const { server, hub, one, rows } = await watched();
    await rows();
    await server.say("changes", "i~c_1:6", { conversation: "c_1", at: 6, changes: [{ type: "grow", id: "3", offset: 9, text: "c" }] });
    expect(server.asked.at(-1)).toBe("i~c_1:");
    expect(one.frames().filter((each) => each.type === "changes")).toEqual([]);
    hub.hear(one.port, { type: "bye" });
  });

  it("comes back to a conversation with the number it held", async () => {
    const { server, hub, one, rows } = await watched();
    await rows();
    hub.hear(one.port, { type: "watch", conversation: "c_2" });
    await vi.advanceTimersByTimeAsync(1);
    hub.hear(one.port, { type: "watch", conversation: "c_1" });
    await vi.advanceTimersByTimeAsync(1);
    expect(server.asked).toEqual(["-~c_1:", "i~c_2:", "i~c_1:5"]);
    hub.hear(one.port, { type: "bye" });
  });
});
