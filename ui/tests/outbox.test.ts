import { afterEach, beforeEach, describe, expect, it, vi } from "vitest";

type Outbox = typeof import("../src/outbox");
const MESSAGE = { conversation: "c_1", leaving: null, text: "hold on", how: "queue", after: 0 } as const;
/** What the server answers, request by request, and what it was asked. */
let answers: (Response | Error)[] = [];
let asked: { path: string; key: string | null; body: unknown }[] = [];

/** A page that was just loaded. */
async function load(): Promise<Outbox> {
  vi.resetModules();
  return import("../src/outbox");
}

const stored = (): { text: string }[] =>
  Object.values(localStorage).map((each) => JSON.parse(String(each)) as { text: string; written: number }).sort((a, b) => a.written - b.written);
const json = (status: number, body: object): Response => new Response(JSON.stringify(body), { status });

beforeEach(() => {
  vi.useFakeTimers();
  localStorage.clear();
  [answers, asked] = [[], []];
  vi.stubGlobal("fetch", (path: string, init: RequestInit) => {
    const key = new Headers(init.headers).get("Idempotency-Key");
    asked.push({ path, key, body: JSON.parse(String(init.body)) });
    const answer = answers.shift() ?? new Error("no answer");
    return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer);
  });
});
afterEach(() => {
  vi.unstubAllGlobals();
  vi.useRealTimers();
});

describe("the outbox", () => {
  it("keeps a message until its 202 came, and sends it again with the same key", async () => {
    answers = [new Error("gone"), json(503, { detail: "The store is away." }), json(202, { seq: 7 })];
    const { outbox, submit } = await load();
    submit(MESSAGE);
    await vi.advanceTimersByTimeAsync(100);
    expect(stored().map((each) => each.text)).toEqual(["hold on"]);
    await vi.advanceTimersByTimeAsync(10_000);
    expect(stored()).toEqual([]);
    expect(outbox.value.map((each) => each.seq)).toEqual([7]);
    expect(asked.length).toBe(3);
    expect(new Set(asked.map((each) => each.key)).size).toBe(1);
  });

  it("goes on after the page was loaded anew", async () => {
    (await load()).submit(MESSAGE);
    await vi.advanceTimersByTimeAsync(100);
    const first = asked[0]?.key;
    answers = [json(202, { seq: 7 })];
    asked = [];
    const { pump } = await load();
    await pump();
    expect(asked[0]).toEqual({ path: "/api/conversations/c_1/messages", key: first, body: { text: "hold on", how: "queue" } });
    expect(stored()).toEqual([]);
  });

  it("of one tab writes over nothing that another tab keeps, before it heard of it", async () => {
    const [first, second] = [await load(), await load()];
    first.submit(MESSAGE);
    await vi.advanceTimersByTimeAsync(100);
    second.submit({ ...MESSAGE, conversation: "c_2", text: "from the other tab" });
    await vi.advanceTimersByTimeAsync(100);
    first.discard(first.outbox.value[0]!.key);
    expect(stored().map((each) => each.text)).toEqual(["from the other tab"]);
    first.submit({ ...MESSAGE, text: "and on" });
    expect(stored().map((each) => each.text)).toEqual(["from the other tab", "and on"]);
  });

  it("stops at a refusal and says why; the person may try again", async () => {
    answers = [json(413, { detail: "The message is too long.", hint: "Cut it." }), json(202, { seq: 1 })];
    const { outbox, submit, retry } = await load();
    submit(MESSAGE);
    await vi.advanceTimersByTimeAsync(60_000);
    expect(outbox.value[0]?.refused).toBe("The message is too long. Cut it.");
    expect(asked.length).toBe(1);
    retry(outbox.value[0]!.key);
    await vi.advanceTimersByTimeAsync(100);
    expect(outbox.value[0]?.seq).toBe(1);
  });

  it("keeps the order within a conversation, and one that is stuck holds no other up", async () => {
    answers = [new Error("gone"), json(202, { seq: 1 })];
    const { submit, outbox } = await load();
    submit(MESSAGE);
    submit({ ...MESSAGE, text: "second" });
    submit({ ...MESSAGE, conversation: "c_2", text: "elsewhere" });
    await vi.advanceTimersByTimeAsync(100);
    expect(asked.map((each) => (each.body as { text: string }).text)).toEqual(["hold on", "elsewhere"]);
    answers = [json(202, { seq: 5 }), json(202, { seq: 6 })];
    await vi.advanceTimersByTimeAsync(5000);
    const sent = outbox.value.filter((each) => each.conversation === "c_1").map((each) => [each.text, each.seq]);
    expect(sent).toEqual([["hold on", 5], ["second", 6]]);
  });

  it("sends and shows only what the user who is signed in wrote", async () => {
    const entry = "tenax.outbox.old";
    localStorage.setItem(entry, JSON.stringify({ ...MESSAGE, key: "old", written: 1, tries: 0, text: "of an earlier version" }));
    localStorage.setItem("tenax.user", "ada");
    const ada = await load();
    expect(JSON.parse(localStorage.getItem(entry)!)).toMatchObject({ user: "ada" });
    ada.submit(MESSAGE);
    await vi.advanceTimersByTimeAsync(100);
    expect(asked.length).toBe(1);
    localStorage.setItem("tenax.user", "bob"); // in another tab
    await vi.advanceTimersByTimeAsync(60_000);
    await ada.pump(true);
    expect(asked.length).toBe(1);
    const bob = await load();
    bob.startOutbox({ opened: () => undefined, denied: () => undefined });
    await vi.advanceTimersByTimeAsync(60_000);
    expect([bob.outbox.value, asked.length]).toEqual([[], 1]);
    localStorage.setItem("tenax.user", "ada");
    answers = [json(202, { seq: 1 }), json(202, { seq: 2 })];
    const again = await load();
    await again.pump();
    expect(again.outbox.value.map((each) => [each.text, each.seq])).toEqual([["of an earlier version", 1], ["hold on", 2]]);
  });

  it("opens a conversation once for what was written before there was one", async () => {
    answers = [json(201, { id: "c_9" }), json(202, { seq: 1 }), json(202, { seq: 2 })];
    const { submit } = await load();
    submit({ ...MESSAGE, conversation: null });
    submit({ ...MESSAGE, conversation: null, text: "second" });
    await vi.advanceTimersByTimeAsync(1000);
    expect(asked.map((each) => each.path)).toEqual(["/api/conversations", "/api/conversations/c_9/messages", "/api/conversations/c_9/messages"]);
  });
});

describe("a draft", () => {
  it("is of the user who wrote it; one without a name of the first who comes", async () => {
    localStorage.setItem("tenax.draft.new", "half");
    localStorage.setItem("tenax.user", "a/d");
    vi.resetModules();
    const ada = await import("../src/drafts");
    ada.adoptDrafts();
    ada.keepWords("c_1", "more");
    expect([ada.wordsOf(null), ada.wordsOf("c_1")]).toEqual(["half", "more"]);
    localStorage.setItem("tenax.user", "bob");
    vi.resetModules();
    const bob = await import("../src/drafts");
    bob.adoptDrafts();
    expect([bob.wordsOf(null), bob.wordsOf("c_1")]).toEqual(["", ""]);
  });
});
