// How well a text fits the words that a person types in the palette and in the composer.

/** Lower case, without accents. */
const plain = (text: string): string => text.normalize("NFD").replace(/\p{M}/gu, "").toLowerCase();
const isWordStart = (text: string, at: number): boolean => at === 0 || !/[\p{L}\p{N}]/u.test(text[at - 1]!);
/** In longer texts nearly every few letters occur in order. */
const LETTERS_MAX = 60;

function scoreWord(word: string, text: string): number {
  const at = text.indexOf(word);
  if (at === 0) return 4;
  if (at > 0) return isWordStart(text, at) || text.split(/[^\p{L}\p{N}]+/u).some((other) => other.startsWith(word)) ? 3 : 2;
  if (text.length > LETTERS_MAX || word.length < 2) return 0;
  for (let start = text.indexOf(word[0]!); start !== -1; start = text.indexOf(word[0]!, start + 1)) {
    let next = start;
    if (isWordStart(text, start) && [...word].every((letter) => (next = text.indexOf(letter, next) + 1) > 0)) return 1;
  }
  return 0;
}

/** 0 if the text does not match. Every word must be in the text, in any order; letters in their order are a weak match. */
export function score(query: string, text: string): number {
  const words = plain(query).split(/\s+/).filter((word) => word !== "");
  const scores = words.map((word) => scoreWord(word, plain(text)));
  if (scores.includes(0)) return 0;
  return scores.length === 0 ? 1 : scores.reduce((sum, one) => sum + one, 0) / scores.length;
}

/** The entries that match, the best first. Entries that match equally well keep their order. */
export function best<T>(query: string, entries: T[], textOf: (entry: T) => string): T[] {
  const scored = entries.map((entry) => ({ entry, points: score(query, textOf(entry)) })).filter(({ points }) => points > 0);
  return scored.sort((a, b) => b.points - a.points).map(({ entry }) => entry);
}
