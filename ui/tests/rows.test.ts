import { describe, expect, it } from "vitest";
import { codePoints, foldTurns, Mismatch, rowOfHit, Rows } from "../src/rows";
import type { Row, RowPage } from "../src/types";

const row = (id: string, place: number, fields: Partial<Row> = {}): Row => ({ id, key: [place, 0, 0], kind: "user", at: 0, ...fields });
const page = (rows: Row[], more: boolean, waiting: Row[] = []): RowPage => ({ rows, waiting, next: more ? "1.-1.0" : null });

const held = (...given: Parameters<typeof page>): Rows => {
  const rows = new Rows();
  rows.snapshot(page(...given));
  return rows;
};

describe("the rows of a conversation", () => {
  it("stand in the order of their keys, wherever they came", () => {
    const rows = held([row("b", 2), row("a", 1)], false);
    rows.apply([{ type: "put", row: row("c", 1, { key: [1, 1, 0] }) }]);
    expect(rows.order).toEqual(["a", "c", "b"]);
  });

  it("move when their key changes, as a queued message does when it is taken", () => {
    const rows = held([row("1", 2 ** 62, { state: "queued" }), row("2", 2)], false);
    expect(rows.order).toEqual(["2", "1"]);
    expect(rows.apply([{ type: "put", row: row("1", 1) }]).order).toBe(true);
    expect(rows.order).toEqual(["1", "2"]);
  });

  it("grow at an offset counted in code points", () => {
    const rows = held([row("1", 1, { text: "🧷é" })], false);
    rows.apply([{ type: "grow", id: "1", offset: 2, text: "👩‍🚀" }]);
    rows.apply([{ type: "grow", id: "1", offset: 5, text: "!" }]);
    expect(rows.byId.get("1")?.text).toBe("🧷é👩‍🚀!");
  });

  it("grow their thoughts apart from their texts", () => {
    const rows = held([row("1", 1, { thought: "🧷" })], false);
    rows.apply([{ type: "grow", id: "1", offset: 1, text: "hm", field: "thought" }]);
    rows.apply([{ type: "grow", id: "1", offset: 0, text: "So" }, { type: "grow", id: "1", offset: 3, text: "!", field: "thought" }]);
    expect(rows.byId.get("1")).toMatchObject({ thought: "🧷hm!", text: "So" });
    expect(() => rows.apply([{ type: "grow", id: "1", offset: 2, text: "x", field: "thought" }])).toThrow(Mismatch);
  });

  it("refuse a text that does not go on where theirs ends", () => {
    const rows = held([row("1", 1, { text: "abc" })], false);
    expect(() => rows.apply([{ type: "grow", id: "1", offset: 2, text: "x" }])).toThrow(Mismatch);
    expect(() => rows.apply([{ type: "grow", id: "9", offset: 0, text: "x" }])).toThrow(Mismatch);
  });

  it("count anew after a row was put", () => {
    const rows = held([row("1", 1, { text: "abc" })], false);
    rows.apply([{ type: "grow", id: "1", offset: 3, text: "d" }, { type: "put", row: row("1", 1, { text: "x" }) }]);
    rows.apply([{ type: "grow", id: "1", offset: 1, text: "y" }]);
    expect(rows.byId.get("1")?.text).toBe("xy");
  });

  it("keep what is newer when an older page comes", () => {
    const rows = held([row("3", 3, { text: "new" })], true);
    rows.older(page([row("2", 2), row("3", 3, { text: "old" })], false));
    expect(rows.order).toEqual(["2", "3"]);
    expect(rows.byId.get("3")?.text).toBe("new");
    expect(rows.next).toBeNull();
  });

  it("leave a row out that stands above what is held", () => {
    const rows = held([row("5", 5)], true);
    rows.apply([{ type: "put", row: row("1", 1) }]);
    expect(rows.order).toEqual(["5"]);
  });

  it("hold what waits apart from the page, and give both on", () => {
    const waits = row("2", 2 ** 62, { key: [2 ** 62, 0, 2], state: "queued" });
    const rows = held([row("5", 5)], true, [waits]);
    expect(rows.order).toEqual(["5", "2"]);
    expect(rows.page).toEqual(page([row("5", 5)], true, [waits]));
    rows.apply([{ type: "put", row: row("2", 7) }]); // a run takes it
    expect(rows.order).toEqual(["5", "2"]);
    expect(rows.waiting).toEqual([]);
    rows.apply([{ type: "drop", id: "5" }, { type: "drop", id: "2" }, { type: "put", row: waits }]);
    expect(rows.oldest).toBeUndefined(); // no page is asked for by what has no place
  });

  it("drop, and say so", () => {
    const rows = held([row("1", 1), row("2", 2)], false);
    expect(rows.apply([{ type: "drop", id: "1" }])).toEqual({ ids: new Set(["1"]), order: true });
    expect(rows.order).toEqual(["2"]);
  });

  it("find the row of a search hit: the message itself, or the answer that was asked for before it", () => {
    const rows = held([row("1", 1), row("3", 3, { kind: "assistant" }), row("8", 8, { kind: "assistant" })], false);
    expect(rowOfHit(rows, 1, "user")).toBe("1");
    expect(rowOfHit(rows, 6, "assistant")).toBe("3");
    expect(rowOfHit(rows, 9, "partial")).toBe("8");
    expect(rowOfHit(rows, 0, "user")).toBeNull();
  });
});

it("code points are counted as Python counts them, halves of pairs too", () => {
  expect([codePoints(""), codePoints("aé"), codePoints("😀😀"), codePoints("\ud83d"), codePoints("\ud83da")]).toEqual([0, 2, 2, 1, 2]);
});

describe("the work of a finished turn", () => {
  const tool = (id: string, state = "done") => row(id, 0, { kind: "tool", name: "read_file", state });
  const answer = (id: string, text = "Done.", state = "") => row(id, 0, { kind: "assistant", text, state });
  const asked = [row("1", 1), answer("2", "I look."), tool("3"), answer("4", ""), tool("5", "failed")];

  it("folds into its first row, from the first call to the last", () => {
    const folds = foldTurns([...asked, answer("6"), row("7", 7, { kind: "files" })]);
    expect([...folds]).toEqual([["3", ["3", "4", "5"]], ["4", []], ["5", []]]);
  });

  it("stays open while something runs, asks or is written, and without an answer", () => {
    expect(foldTurns(asked).size).toBe(0);
    expect(foldTurns([...asked, answer("6", "Do", "streaming")]).size).toBe(0);
    expect(foldTurns([...asked, tool("6", "asks"), answer("7")]).size).toBe(0);
    expect(foldTurns([...asked, answer("6", "Do", "cut")]).size).toBe(0);
  });

  it("is not folded for one call, and a queued message ends no turn", () => {
    expect(foldTurns([row("1", 1), tool("2"), answer("3")]).size).toBe(0);
    expect(foldTurns([...asked, answer("6"), row("7", 7, { state: "queued" })]).size).toBe(3);
  });
});
