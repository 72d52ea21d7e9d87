// Two languages for tests, made from English: en-XA has accented and longer texts, ar-XB is written from right to left.
import type { Catalogue } from "../text";

const PLAIN = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const ARABIC = "ابتثجحخدذرزسشصضطظعغفقكلمنه";
const ACCENTED = "ÅƁÇÐÉƑĜĤÎĴĶĻṀÑÖÞǪŔŠŢÛṼŴẊÝŽåƀçðéƒĝĥîĵķļɱñöþǫŕšţûṽŵẋýž";
/** Every vowel twice: about 40 % longer, and still possible to break between words. */
const accent = (text: string): string => text.replace(/[aeiou]/gi, "$&$&").replace(/[a-z]/gi, (letter) => ACCENTED[PLAIN.indexOf(letter)]!);
/** Arabic letters, so that the browser lays the text out from right to left. */
const turn = (text: string): string => text.replace(/[a-z]/gi, (letter) => ARABIC[PLAIN.indexOf(letter) % 26]!);
const change = (text: string, each: (piece: string) => string): string => text.replace(/\{\w+\}|[^{]+/g, (piece) => (piece.startsWith("{") ? piece : each(piece)));
const pseudo = (text: string, name: string): string => (name === "ar-XB" ? change(text, turn) : `⟦${change(text, accent)}⟧`);

export function pseudoCatalogue(english: Catalogue, name: string): Catalogue {
  const entries = Object.entries(english).map(([key, text]) => {
    if (typeof text === "string") return [key, pseudo(text, name)];
    return [key, Object.fromEntries(Object.entries(text).map(([form, one]) => [form, pseudo(one, name)]))];
  });
  return Object.fromEntries(entries) as Catalogue;
}
