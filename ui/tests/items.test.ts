import { expect, test } from "vitest";
import { itemsOf } from "../src/rows";
import type { Row } from "../src/types";

const at = (day: number, hour = 12): number => new Date(2026, 4, day, hour).getTime() * 1000;
const row = (id: number, time: number): Row => ({ id: String(id), key: [id, 0, 0], kind: "user", at: time });
const NOW = new Date(2026, 4, 20);
const keys = (rows: Row[], folds = new Map<string, string[]>()) => itemsOf(rows, folds, new Map(), NOW).map(({ key }) => key);

test("each day begins with a line, except today if nothing is older", () => {
  expect(keys([row(1, at(18)), row(2, at(18, 13)), row(3, at(19))])).toEqual(["day:2026-05-18", "1", "2", "day:2026-05-19", "3"]);
  expect(keys([row(1, at(20)), row(2, at(20, 13))])).toEqual(["1", "2"]);
  expect(keys([row(1, at(19)), row(2, at(20))])).toEqual(["day:2026-05-19", "1", "day:2026-05-20", "2"]);
});

test("a message that waited over midnight begins no day of the past", () => {
  expect(keys([row(1, at(18, 23)), row(3, at(19, 0)), row(2, at(18, 23)), row(4, at(19, 1))])).toEqual(["day:2026-05-18", "1", "day:2026-05-19", "3", "2", "4"]);
});

test("the folded work of a turn is one item", () => {
  const folds = new Map([["2", ["2", "3"]], ["3", []]]);
  expect(keys([row(1, at(20)), row(2, at(20)), row(3, at(20)), row(4, at(20))], folds)).toEqual(["1", "work:2", "4"]);
});
