import { beforeEach, describe, expect, it } from "vitest";
import { outbox, type Outgoing } from "../src/outbox";
import { View } from "../src/state";
import { unsentOf } from "../src/transcript";
import type { Frame, Row } from "../src/types";

const row = (seq: number, fields: Partial<Row> = {}): Row => ({ id: String(seq), key: [seq, 0, 0], kind: "user", at: 0, ...fields });
const rows = (at: number, ...seqs: number[]): Frame => {
  return { type: "rows", conversation: "c_1", at, rows: seqs.map((seq) => row(seq)), waiting: [], next: "50.-1.0" };
};
const message = (fields: Partial<Outgoing> = {}): Outgoing => ({
  key: "k", written: 1, conversation: "c_1", leaving: null, text: "hold on", how: "queue", after: 0, tries: 0, ...fields,
});

let view: View;
const shown = (): string[] => unsentOf("c_1", view).map((each) => each.key);

beforeEach(() => {
  view = new View("c_1");
  view.take(rows(60, 58, 60));
});

describe("a message that the server took", () => {
  it("is shown at the end until its row comes", () => {
    outbox.value = [message({ seq: 61 })];
    expect(shown()).toEqual(["k"]);
    view.take({ type: "changes", conversation: "c_1", at: 61, changes: [{ type: "put", row: row(61) }] });
    expect(shown()).toEqual([]);
  });

  it("is not shown at the end when its row stands above those that came after a reconnect", () => {
    outbox.value = [message({ seq: 61 })];
    view.take(rows(190, 130, 190));
    expect(shown()).toEqual([]);
    expect(view.has(outbox.value[0]!)).toBe(true);
  });

  it("is shown until the rows are as far, also in a store that an older copy replaced", () => {
    outbox.value = [message({ seq: 61 })];
    view.take(rows(40, 40));
    expect(shown()).toEqual(["k"]);
  });

  it("of another conversation is not taken for one of this", () => {
    expect(view.has(message({ conversation: "c_2", seq: 58 }))).toBe(false);
    expect(view.has(message())).toBe(false);
  });
});
