// How things are said: verbs of tools, states of turns, times and sizes. Pure.
import type { Fact, Lacks, Provider, Row } from "./types";

/** to do, doing, done */
const VERBS: Record<string, [string, string, string]> = {
  read: ["read", "Reading", "Read"],
  write: ["write", "Writing", "Wrote"],
  edit: ["change", "Changing", "Changed"],
  patch: ["change", "Changing", "Changed"],
  list: ["list", "Listing", "Listed"],
  delete: ["delete", "Deleting", "Deleted"],
  run: ["run", "Running", "Ran"],
  shell: ["run", "Running", "Ran"],
  bash: ["run", "Running", "Ran"],
  terminal: ["run", "Running", "Ran"],
  search: ["search for", "Searching for", "Searched for"],
  grep: ["search for", "Searching for", "Searched for"],
  fetch: ["fetch", "Fetching", "Fetched"],
  web: ["fetch", "Fetching", "Fetched"],
  ask: ["ask", "Asking", "Asked"],
  remember: ["remember", "Remembering", "Remembered"],
  delegate: ["hand on", "Handed on", "Handed on"],
};
const SUBJECTS = ["path", "file", "command", "query", "pattern", "url", "name", "text", "words", "question", "task"];

export function parseArguments(text: string | undefined): Record<string, unknown> | null {
  try {
    const parsed = JSON.parse(text ?? "") as unknown;
    return typeof parsed === "object" && parsed !== null && !Array.isArray(parsed) ? (parsed as Record<string, unknown>) : null;
  } catch {
    return null;
  }
}

/** What a tool's card says in one line: `Wrote`, `notes.txt`. */
export function toolWords(row: Row): { verb: string; subject: string } {
  const name = row.name ?? "";
  const args = parseArguments(row.arguments) ?? {};
  const found = SUBJECTS.map((each) => args[each]).find((each) => typeof each === "string" && each !== "");
  const known = VERBS[name.split(/[_.\-/ ]/)[0]?.toLowerCase() ?? ""];
  const [todo, doing, done] = known ?? ["use", "Using", "Used"];
  const first = typeof found === "string" ? (found.split("\n")[0] ?? "").slice(0, 120) : "";
  if (name === "ask" && row.state === "done") return { verb: "You answered", subject: visible(`${row.text?.split("\n")[2]} · ${first}`) };
  const subject = known !== undefined ? first || name : first === "" ? name : `${name}: ${first}`;
  const verb =
    {
      waiting: `About to ${todo}`,
      asks: `Wants to ${todo}`,
      approved: `May ${todo}`,
      running: doing,
      done,
      ok: done,
      failed: `Could not ${todo}`,
      denied: name === "ask" ? "Got no answer:" : `Was not allowed to ${todo}`,
      unknown: `Outcome unknown: ${todo}`,
      skipped: `Did not ${todo}`,
    }[row.state ?? ""] ?? `${done} (${row.state})`;
  return { verb, subject: visible(subject) };
}

export const MARKERS: Record<string, string> = {
  stopped: "Stopped.",
  failed: "This turn failed.",
  pending: "Interrupted. Looking for what was written…",
  recovered: "Interrupted. What was written stands above.",
  neutral: "Interrupted. Nothing more was recovered.",
  resumed: "Interrupted, and went on below.",
};

/** What a row about the memory says before the fact. */
export const NOTED: Record<string, string> = {
  added: "Remembered:",
  replaced: "Changed what it remembers:",
  removed: "Forgot:",
};

/** Who told or changed a fact. */
export const BY: Record<Fact["by"], string> = { person: "You", model: "The model", review: "A review", import: "An import" };

const count = (number: number, one: string, many: string): string[] => (number === 0 ? [] : [`${number} ${number === 1 ? one : many}`]);

/** How far a provider is, in a sentence. */
export function providerWords(each: Provider): string {
  if (each.problem !== "") return `Not used. ${each.problem}`;
  const behind = [...count(each.behind, "turn", "turns"), ...count(each.owed, "end of a conversation", "ends of conversations")];
  const said = behind.length === 0 ? ["Up to date."] : [`${behind.join(" and ")} behind.`];
  if (each.busy_seconds >= 1) said.push(`Busy for ${Math.round(each.busy_seconds)} s.`);
  if (each.rests_seconds > 0) said.push(`It is tried again in ${Math.ceil(each.rests_seconds)} s.`);
  return said.join(" ");
}

/** Characters that change how others look (direction, zero width, control), made visible: nothing hides in a file name. */
export function visible(text: string): string {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g,
    (each) => `\\u${each.charCodeAt(0).toString(16).padStart(4, "0")}`,
  );
}

const DAY_MS = 86_400_000;

/** The heading under which a conversation stands in the list. */
export function ageOf(time: string, now: Date = new Date()): string {
  const then = new Date(time);
  const midnight = new Date(now.getFullYear(), now.getMonth(), now.getDate()).getTime();
  if (then.getTime() >= midnight) return "Today";
  if (then.getTime() >= midnight - DAY_MS) return "Yesterday";
  if (then.getTime() >= midnight - 6 * DAY_MS) return "This week";
  return "Earlier";
}

export function shortTime(time: Date, now: Date = new Date()): string {
  if (time.toDateString() === now.toDateString())
    return time.toLocaleTimeString(undefined, { hour: "numeric", minute: "2-digit" });
  const year = time.getFullYear() === now.getFullYear() ? {} : ({ year: "numeric" } as const);
  return time.toLocaleDateString(undefined, { day: "numeric", month: "short", ...year });
}

export function bytes(count: number): string {
  if (count < 1000) return `${count} bytes`;
  return count < 1_000_000 ? `${(count / 1000).toFixed(1)} KB` : `${(count / 1_000_000).toFixed(1)} MB`;
}

/** A text cut into pieces that are marked or not, for the words of a search. */
export function marked(text: string, query: string): { text: string; hit: boolean }[] {
  const words = query.split(/\s+/).filter((each) => each.length > 1);
  if (words.length === 0) return [{ text, hit: false }];
  const pattern = words.map((each) => each.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")).join("|");
  const pieces = text.split(new RegExp(`(${pattern})`, "gi"));
  return pieces.map((each, n) => ({ text: each, hit: n % 2 === 1 })).filter((each) => each.text !== "");
}

/** What is said while the store lacks what it had stored. */
export function lacksWords(lacks: Lacks, now: Date = new Date()): string {
  const to = lacks.to === "" ? "is empty" : `was put back to ${shortTime(new Date(lacks.to), now)}`;
  const count = lacks.messages > 0 ? lacks.messages : lacks.events;
  const what = `${count} ${lacks.messages > 0 ? "message" : "event"}${count === 1 ? " is" : "s are"} missing`;
  const missing = lacks.conversations > 0 ? `: ${what}` : "";
  return `The store ${to}${missing}. Nothing new is stored until a newer copy is restored, or the loss is accepted: tenax doctor --accept`;
}
