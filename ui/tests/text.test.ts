// The catalogue of texts: placeholders, plurals, languages.
import { h } from "preact";
import { afterEach, expect, test, vi } from "vitest";
import { chooseLanguage, language, locale, startLanguage, t, tx, type TextKey } from "../src/text";

vi.mock("../src/catalogue/en.json", () => ({
  default: { plain: "Send", named: "Sign in as {name}", files: { one: "{n} file", other: "{n} files" }, linked: "See {link} now" },
}));
const key = (name: string) => name as TextKey;

afterEach(() => chooseLanguage("en"));

test("a text with placeholders", () => {
  expect(t(key("plain"))).toBe("Send");
  expect(t(key("named"), { name: "Ada {name}" })).toBe("Sign in as Ada {name}");
});

test("a plural is chosen by the number, which is formatted", () => {
  expect([0, 1, 2000].map((n) => t(key("files"), { n }))).toEqual(["0 files", "1 file", "2,000 files"]);
});

test("an element in a sentence", () => {
  const link = h("a", { href: "/memory" }, "Memory");
  expect(tx(key("linked"), { link })).toEqual(["See ", link, " now"]);
});

test("a pseudo-language has marks, accents and longer texts, and keeps placeholders", async () => {
  await chooseLanguage("en-XA");
  expect(t(key("named"), { name: "Ada" })).toMatch(/^⟦[^a-z]+Ada⟧$/i);
  expect(t(key("files"), { n: 1 })).toBe("⟦1 ƒîîļéé⟧");
  expect([document.documentElement.lang, document.documentElement.dir]).toEqual(["en-XA", "ltr"]);
});

test("a language that is written from right to left turns the page", async () => {
  await chooseLanguage("ar-XB");
  expect(document.documentElement.dir).toBe("rtl");
  await chooseLanguage("en");
  expect([document.documentElement.dir, document.documentElement.lang]).toEqual(["ltr", "en"]);
});

test("the browser remembers the language; an unknown one is the browser's", async () => {
  localStorage.setItem("tenax.language", "en-XA");
  await startLanguage();
  expect(language.value).toBe("en-XA");
  await chooseLanguage("xx");
  expect(language.value).toBe("en");
});

test("dates and numbers have the region of the browser", () => {
  vi.spyOn(navigator, "languages", "get").mockReturnValue(["de", "en-GB"]);
  expect(locale()).toBe("en-GB");
  vi.restoreAllMocks();
});
