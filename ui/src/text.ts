// The texts of the page, in the language of the person. English is built in; another language is a file in catalogue/, loaded when it is
// chosen. A text that a language lacks is English.
import { signal } from "@preact/signals";
import type { ComponentChildren } from "preact";
import { recall, remember } from "./browserStorage";
import english from "./catalogue/en.json";

/** A text with {name} placeholders, or its plural forms, which are chosen by the number {n}. */
type Text = string | ({ other: string } & Partial<Record<Intl.LDMLPluralRule, string>>);
export type Catalogue = Record<string, Text>;
export type TextKey = keyof typeof english;
const STORED = "tenax.language";
const RIGHT_TO_LEFT = /^(ar|he|fa|ur)\b/;
/** Made from English for tests; not offered to people. */
const PSEUDO = ["en-XA", "ar-XB"];
const files = import.meta.glob<{ default: Catalogue }>(["./catalogue/*.json", "!./catalogue/en.json"]);
const fileOf = (name: string): string => `./catalogue/${name}.json`;
/** The languages that a person can choose. */
export const languages: string[] = ["en", ...Object.keys(files).map((file) => file.slice("./catalogue/".length, -".json".length))];
/** The language of the page. */
export const language = signal("en");
const catalogue = signal<Catalogue>(english);
let wanted = "en";

/** The first language of the browser that has a file: for `pt-BR` that file, else `pt`. */
function preferred(): string {
  for (const asked of navigator.languages)
    for (let name = asked; name !== ""; name = name.slice(0, Math.max(0, name.lastIndexOf("-")))) if (languages.includes(name)) return name;
  return "en";
}

async function load(name: string): Promise<Catalogue> {
  if (PSEUDO.includes(name)) return (await import("./catalogue/pseudo")).pseudoCatalogue(english, name);
  return name === "en" ? {} : (await files[fileOf(name)]!()).default;
}

/** Show the page in a language and remember it for this browser; "" follows the languages of the browser. */
export async function chooseLanguage(choice: string): Promise<void> {
  const name = [...languages, ...PSEUDO].includes(choice) ? choice : preferred();
  wanted = name;
  const loaded = await load(name);
  if (wanted !== name) return; // another one was chosen while this one loaded
  catalogue.value = { ...english, ...loaded };
  language.value = name;
  document.documentElement.lang = name;
  document.documentElement.dir = RIGHT_TO_LEFT.test(name) ? "rtl" : "ltr";
  remember(STORED, choice);
}

/** Load the language of this browser. If its file does not load, the page is English. */
export const startLanguage = (): Promise<void> => chooseLanguage(recall(STORED) ?? "").catch(() => undefined);
/** The locale of dates and numbers: the language of the page, with the region of the browser if it has one. */
export const locale = (): string => navigator.languages.find((name) => name.startsWith(`${language.value}-`)) ?? language.value;
export const formatNumber = (number: number, how?: Intl.NumberFormatOptions): string => new Intl.NumberFormat(locale(), how).format(number);

function textOf(key: TextKey, values: Record<string, unknown>): string {
  const text = catalogue.value[key] ?? key;
  if (typeof text === "string") return text;
  return text[new Intl.PluralRules(locale()).select(Number(values["n"]))] ?? text.other;
}

const shown = (value: unknown): string => (typeof value === "number" ? formatNumber(value) : String(value ?? ""));

/** The text of a key, with its placeholders filled in. */
export function t(key: TextKey, values: Record<string, string | number> = {}): string {
  return textOf(key, values).replace(/\{(\w+)\}/g, (_, name: string) => shown(values[name]));
}

/** The text of a key, with elements in its placeholders: tx("setup.file", { file: <code>…</code> }). */
export function tx(key: TextKey, values: Record<string, ComponentChildren>): ComponentChildren {
  const pieces = textOf(key, values).split(/\{(\w+)\}/);
  return pieces.map((piece, n) => (n % 2 === 0 ? piece : typeof values[piece] === "object" ? values[piece] : shown(values[piece])));
}
