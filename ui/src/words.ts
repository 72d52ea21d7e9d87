// Wording: verbs of tools, states of turns, times and sizes. Pure functions.
import { formatNumber, locale, t, type TextKey } from "./text";
import type { Lacks, Provider, Row } from "./types";

/** The verbs of tools, by the first word of their names. */
const VERBS = {
  read: "read", write: "write", edit: "change", patch: "change", list: "list", delete: "delete", search: "search", find: "search", grep: "search", fetch: "fetch",
  web: "fetch", run: "run", shell: "run", bash: "run", terminal: "run", ask: "ask", remember: "remember", delegate: "delegate",
} as const;
type Verb = (typeof VERBS)[keyof typeof VERBS];
const STATES = ["waiting", "asks", "approved", "failed", "cancelled", "denied", "unknown", "skipped"] as const;
const SUBJECTS = ["path", "file", "command", "query", "pattern", "url", "name", "text", "words", "question", "task"];

/** The kinds of work that a tool does, by the first word of its name. They choose its icon and its place in the summary of a turn. */
const WORK = {
  read: "read", write: "change", edit: "change", patch: "change", delete: "change", list: "find", find: "find", search: "find", grep: "find", fetch: "fetch", web: "fetch", run: "run",
  shell: "run", bash: "run", terminal: "run", delegate: "delegate", remember: "remember", memory: "remember", ask: "ask", todo: "todo",
} as const;
export type Work = (typeof WORK)[keyof typeof WORK] | "use";
const firstWord = (name: string): string => name.split(/[_.\-/ ]/)[0]?.toLowerCase() ?? "";
export const workOf = (name: string): Work => (name === "search_web" ? "fetch" : ((WORK as Record<string, Work>)[firstWord(name)] ?? "use"));
/** Whether a message waits for its answer, or for the next step of the present one. */
export const isWaiting = (row: Row): boolean => row.state === "queued" || row.state === "steering";
/** Whether a tool call failed, or a command ended with an error. */
export const isFailed = (row: Row): boolean => row.kind === "tool" && (row.state === "failed" || (endingOf(row)?.code ?? 0) !== 0);

/** What a turn did: "Read 3 files, ran 2 commands". */
export function workWords(rows: Row[]): string {
  const counts = new Map<Work, number>();
  for (const row of rows) {
    const work = workOf(row.name ?? "");
    if (row.kind === "tool" && work !== "todo") counts.set(work, (counts.get(work) ?? 0) + 1);
  }
  const said = [...counts].map(([work, n]) => t(`work.${work as Exclude<Work, "todo">}`, { n }));
  const words = new Intl.ListFormat(locale(), { type: "unit" }).format(said.length > 0 ? said : [t("work.todo")]);
  return words.charAt(0).toLocaleUpperCase(locale()) + words.slice(1);
}

/** The seconds from the start of the first call to the end of the last one. */
export function workSeconds(rows: Row[]): number {
  const starts = rows.map((row) => row.started || row.at);
  const ends = rows.map((row) => Math.max(row.at, (row.started || 0) + (row.seconds ?? 0) * 1e6));
  return Math.max(0, Math.max(...ends) - Math.min(...starts)) / 1e6;
}

/** A duration: "0.4 s", "12 s", "2 min 5 s". */
export function durationOf(seconds: number): string {
  if (seconds < 1) return t("time.seconds", { seconds: formatNumber(seconds, { maximumFractionDigits: 1 }) });
  const whole = Math.round(seconds);
  if (whole < 60) return t("time.seconds", { seconds: whole });
  return t("time.minutes", { minutes: Math.floor(whole / 60), seconds: whole % 60 });
}

export function parseArguments(text: string | undefined): Record<string, unknown> | null {
  try {
    const parsed = JSON.parse(text ?? "") as unknown;
    return typeof parsed === "object" && parsed !== null && !Array.isArray(parsed) ? (parsed as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

/** The one-line summary on a tool's card: `Wrote`, `notes.txt`. */
export function toolWords(row: Row): { verb: string; subject: string } {
  const name = row.name ?? "";
  const args = parseArguments(row.arguments) ?? {};
  const found = SUBJECTS.map((subject) => args[subject]).find((value) => typeof value === "string" && value !== "");
  const known = (VERBS as Record<string, Verb>)[firstWord(name)];
  const first = typeof found === "string" ? (found.split("\n")[0] ?? "").slice(0, 120) : "";
  if (name === "ask" && row.state === "done") return { verb: t("tool.you_answered"), subject: visible(`${row.text?.split("\n")[2]} · ${first}`) };
  const subject = known !== undefined ? first || name : first === "" ? name : `${name}: ${first}`;
  return { verb: verbOf(known ?? "use", row.state ?? "", name), subject: visible(subject) };
}

function verbOf(word: Verb | "use", state: string, name: string): string {
  if (state === "running") return t(`tool.${word}.doing`);
  if (state === "denied" && name === "ask") return t("tool.no_answer");
  const other = STATES.find((one) => one === state);
  if (other !== undefined) return t(`tool.state.${other}`, { todo: t(`tool.${word}.todo`) });
  return t(`tool.${word}.done`) + (state === "done" || state === "ok" ? "" : ` (${state})`);
}

/** How a command ended, from the last line of its output. Null if the output does not say. */
export function endingOf(row: Row): { code: number; seconds: string } | null {
  const match = /\[exit code (-?\d+), ([\d.]+) s[^\n]*\]\s*$/.exec((row.text ?? "").slice(-400));
  return row.kind === "tool" && row.state === "done" && match !== null ? { code: Number(match[1]), seconds: match[2]! } : null;
}

/** How the server marks where a command runs, before the command itself. The card shows the command already. */
const PLACES: [string, TextKey][] = [
  ["in the sandbox: ", "target.sandbox"],
  ["with network: ", "target.network"],
  ["WITHOUT A SANDBOX: ", "target.no_sandbox"],
];

/** What a tool call affects, as a sentence. */
export function targetWords(touches: string): string {
  if (touches === "") return t("target.none");
  const place = PLACES.find(([mark]) => touches.startsWith(mark))?.[1];
  return place === undefined ? t("target.other", { target: visible(touches) }) : t(place);
}

const MARKERS = ["stopped", "failed", "pending", "recovered", "neutral", "resumed"] as const;
/** Why an answer ended early. */
export const markerWords = (state: string): string => t(`marker.${MARKERS.find((one) => one === state) ?? "other"}`);
const NOTED = ["added", "replaced", "removed"] as const;
/** The label of a memory row, before its text. */
export const notedWords = (action: string): string => t(`noted.${NOTED.find((one) => one === action) ?? "other"}`);

/** The state of a memory provider, as a sentence. */
export function providerWords(provider: Provider): string {
  if (provider.problem !== "") return t("provider.not_used", { problem: visible(provider.problem) });
  const { behind, owed, busy_seconds: busy, rests_seconds: rests } = provider;
  const turns = t("provider.turns", { n: behind });
  const conversations = t("provider.conversations", { n: owed });
  const late = behind > 0 && owed > 0 ? t("provider.both", { turns, conversations }) : behind > 0 ? turns : conversations;
  const said = [behind + owed > 0 ? t("provider.behind", { late }) : t("provider.up_to_date")];
  if (busy >= 1) said.push(t("provider.busy", { n: Math.round(busy) }));
  if (rests > 0) said.push(t("provider.rests", { n: Math.ceil(rests) }));
  return said.join(" ");
}

/** Escape characters that are invisible or change how others look (control, zero width, direction), so that nothing hides in a file name. */
export function visible(text: string): string {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (character) => `\\u${character.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

const DAY_MS = 86_400_000;

/** The heading of a conversation in the list. */
export function ageOf(time: string, now: Date = new Date()): string {
  const then = new Date(time);
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  if (then.getTime() >= midnight) return t("age.today");
  if (then.getTime() >= midnight - DAY_MS) return t("age.yesterday");
  if (then.getTime() >= midnight - 6 * DAY_MS) return t("age.week");
  return t("age.earlier");
}

export function shortTime(time: Date, now: Date = new Date()): string {
  if (time.toDateString() === now.toDateString()) return time.toLocaleTimeString(locale(), { hour: "numeric", minute: "2-digit" });
  const year = time.getFullYear() === now.getFullYear() ? {} : ({ year: "numeric" } as const);
  return time.toLocaleDateString(locale(), { day: "numeric", month: "short", ...year });
}

/** The name of a day between the rows of a conversation. */
export function dayWords(time: Date, now: Date = new Date()): string {
  const age = ageOf(time.toISOString(), now);
  if (age === t("age.today") || age === t("age.yesterday")) return age;
  const year = time.getFullYear() === now.getFullYear() ? {} : ({ year: "numeric" } as const);
  return time.toLocaleDateString(locale(), { weekday: "long", day: "numeric", month: "long", ...year });
}

export function bytes(count: number): string {
  const short = (number: number) => formatNumber(number, { minimumFractionDigits: 1, maximumFractionDigits: 1 });
  if (count < 1000) return t("size.bytes", { n: count });
  if (count < 1_000_000) return t("size.kb", { n: short(count / 1000) });
  return count < 1_000_000_000 ? t("size.mb", { n: short(count / 1_000_000) }) : t("size.gb", { n: short(count / 1_000_000_000) });
}

/** Split a text at the words of a search. `hit` marks the pieces to highlight. */
export function marked(text: string, query: string): { text: string; hit: boolean }[] {
  const words = query.split(/[\s"]+/).filter((word) => word.length > 1);
  if (words.length === 0) return [{ text, hit: false }];
  const pattern = words.map((word) => word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
  const pieces = text.split(new RegExp(`(${pattern})`, "gi"));
  return pieces.map((piece, n) => ({ text: piece, hit: n % 2 === 1 })).filter((piece) => piece.text !== "");
}

/** The banner while the store lacks events that it had stored. */
export function lacksWords(lacks: Lacks, now: Date = new Date()): string {
  const store = lacks.to === "" ? t("store.empty") : t("store.older", { time: shortTime(new Date(lacks.to), now) });
  const missing = lacks.messages > 0 ? t("store.messages", { n: lacks.messages }) : t("store.events", { n: lacks.events });
  return lacks.conversations > 0 ? t("store.lacks", { store, missing }) : t("store.lacks_all", { store });
}
