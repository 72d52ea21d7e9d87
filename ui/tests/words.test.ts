import { expect, it } from "vitest";
import type { Row } from "../src/types";
import { ageOf, lacksWords, marked, providerWords, targetWords, toolWords, visible } from "../src/words";

const tool = (state: string, name: string, args: object): Row => ({
  id: "1:a", key: [1, 0, 0], kind: "tool", at: 0, state, name, arguments: JSON.stringify(args),
});

it("a tool's card says what it does in words", () => {
  expect(toolWords(tool("done", "write_file", { path: "a.txt" }))).toEqual({ verb: "Wrote", subject: "a.txt" });
  expect(toolWords(tool("asks", "read_file", { path: "a.txt" })).verb).toBe("Wants to read");
  expect(toolWords(tool("skipped", "write_file", { path: "a.txt" })).verb).toBe("Did not write");
  expect(toolWords(tool("failed", "frobnicate", { query: "x" }))).toEqual({ verb: "Could not use", subject: "frobnicate: x" });
  expect(toolWords({ ...tool("running", "read_file", {}), arguments: "not json" }).subject).toBe("read_file");
});

it.each([
  ["in the sandbox: ls -la", "Runs in the sandbox, without network access."], ["with network: curl example.org", "Runs in the sandbox, with network access."],
  ["WITHOUT A SANDBOX: ls", "Runs WITHOUT A SANDBOX."], ["notes/a.txt", "Target: notes/a.txt"],
])("%s says where a command runs, or what a call affects", (touches, words) => expect(targetWords(touches)).toBe(words));

it("nothing hides in a file name", () => {
  expect(visible("a\u202egpj.exe")).toBe("a\\u202egpj.exe");
  expect(visible("two\nlines\tand a tab")).toBe("two\nlines\tand a tab");
});

it("the words of a search are marked, and only as text", () => {
  expect(marked("a (b) c", "(b)")).toEqual([{ text: "a ", hit: false }, { text: "(b)", hit: true }, { text: " c", hit: false }]);
});

it("the list groups conversations by age", () => {
  const now = new Date(2026, 10, 15, 12);
  const at = (day: number) => new Date(2026, 10, day, 9).toISOString();
  expect([15, 14, 11, 1].map((day) => ageOf(at(day), now))).toEqual(["Today", "Yesterday", "This week", "Earlier"]);
});

it("the state of a memory provider is a sentence", () => {
  const fresh = { provider: "p", problem: "", behind: 0, owed: 0, busy_seconds: 0, error: "", rests_seconds: 0, letters: [] };
  expect(providerWords(fresh)).toBe("Up to date.");
  expect(providerWords({ ...fresh, behind: 1, owed: 2, rests_seconds: 29.1 })).toBe("Behind by 1 turn and 2 ended conversations. Next try in 30 s.");
  expect(providerWords({ ...fresh, problem: "It is not installed.", behind: 3 })).toBe("Not used. It is not installed.");
});

it("the banner of an older store says what is missing and what to do", () => {
  const now = new Date("2026-11-16T12:00:00Z");
  const lacks = { messages: 2, events: 9, conversations: 1, to: "2026-11-14T12:00:00Z" };
  expect(lacksWords(lacks, now)).toMatch(/^The store is an older copy from .*14.*: 2 messages are missing\. .*tenax doctor --accept$/);
  expect(lacksWords({ ...lacks, messages: 0, events: 1 }, now)).toContain(": 1 event is missing.");
  expect(lacksWords({ ...lacks, messages: 0, events: 0, conversations: 0, to: "" }, now)).toMatch(/^The store is empty\. /);
});
