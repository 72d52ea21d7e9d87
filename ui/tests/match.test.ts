import { describe, expect, it } from "vitest";
import { best, score } from "../src/match";

describe("match", () => {
  it("finds every word in any order, without accents and case", () => {
    expect(score("plan garten", "Gärten: der Plan")).toBeGreaterThan(0);
    expect(score("plan boat", "Gärten: der Plan")).toBe(0);
    expect(score("", "anything")).toBeGreaterThan(0);
  });

  it("prefers the start of the text, then of a word, then the inside of a word, then letters in order", () => {
    const texts = ["Keyboard shortcuts", "A board game", "Below other rows", "The Board"];
    expect(best("boa", texts, (text) => text)).toEqual(["A board game", "The Board", "Keyboard shortcuts"]);
    expect(best("board", ["Keyboard", "Board", "The board"], (text) => text)).toEqual(["Board", "The board", "Keyboard"]);
    expect(score("nwc", "New conversation")).toBe(1);
  });

  it("keeps the order of equally good entries", () => { expect(best("plan", ["Plan 2", "Plan 1"], (text) => text)).toEqual(["Plan 2", "Plan 1"]); });
});
