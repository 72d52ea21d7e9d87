// Wording: verbs of tools, states of turns, times and sizes. Pure functions.
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
  delegate: ["run a sub-agent:", "Sub-agent:", "Sub-agent:"],
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

/** The one-line summary on a tool's card: `Wrote`, `notes.txt`. */
export function toolWords(row: Row): { verb: string; subject: string } {
  const name = row.name ?? "";
  const args = parseArguments(row.arguments) ?? {};
  const found = SUBJECTS.map((subject) => args[subject]).find((value) => typeof value === "string" && value !== "");
  const known = VERBS[name.split(/[_.\-/ ]/)[0]?.toLowerCase() ?? ""];
  const [todo, doing, done] = known ?? ["use", "Using", "Used"];
  const first = typeof found === "string" ? (found.split("\n")[0] ?? "").slice(0, 120) : "";
  if (name === "ask" && row.state === "done") return { verb: "You answered", subject: visible(`${row.text?.split("\n")[2]} · ${first}`) };
  const subject = known !== undefined ? first || name : first === "" ? name : `${name}: ${first}`;
  const verb =
    {
      waiting: `About to ${todo}`,
      asks: `Wants to ${todo}`,
      approved: `Allowed: ${todo}`,
      running: doing,
      done,
      ok: done,
      failed: `Could not ${todo}`,
      cancelled: `Stopped: ${todo}`,
      denied: name === "ask" ? "No answer:" : `Denied: ${todo}`,
      unknown: `Outcome unknown: ${todo}`,
      skipped: `Did not ${todo}`,
    }[row.state ?? ""] ?? `${done} (${row.state})`;
  return { verb, subject: visible(subject) };
}

/** How a command ended, from the last line of its output. Null if the output does not say. */
export function endingOf(row: Row): { code: number; seconds: string } | null {
  const match = /\[exit code (-?\d+), ([\d.]+) s[^\n]*\]\s*$/.exec((row.text ?? "").slice(-400));
  return row.kind === "tool" && row.state === "done" && match !== null ? { code: Number(match[1]), seconds: match[2]! } : null;
}

/** How the server marks where a command runs, before the command itself. The card shows the command already. */
const PLACES: [string, string][] = [
  ["in the sandbox: ", "Runs in the sandbox, without network access."],
  ["with network: ", "Runs in the sandbox, with network access."],
  ["WITHOUT A SANDBOX: ", "Runs WITHOUT A SANDBOX."],
];

/** What a tool call affects, as a sentence. */
export function targetWords(touches: string): string {
  if (touches === "") return "Tenax asks before it does this.";
  return PLACES.find(([mark]) => touches.startsWith(mark))?.[1] ?? `Target: ${visible(touches)}`;
}

export const MARKERS: Record<string, string> = {
  stopped: "Stopped.",
  failed: "Something went wrong.",
  pending: "Interrupted. Recovering the answer…",
  recovered: "Interrupted. The text above was recovered.",
  neutral: "Interrupted. No further text was recovered.",
  resumed: "Interrupted. Answer regenerated below.",
};

/** The label of a memory row, before its text. */
export const NOTED: Record<string, string> = {
  added: "Remembered:",
  replaced: "Updated memory:",
  removed: "Forgot:",
};

/** Who added or changed a fact. */
export const BY: Record<Fact["by"], string> = { person: "You", model: "The model", review: "Memory review", import: "Import" };

const count = (number: number, one: string, many: string): string[] => (number === 0 ? [] : [`${number} ${number === 1 ? one : many}`]);

/** The state of a memory provider, as a sentence. */
export function providerWords(provider: Provider): string {
  if (provider.problem !== "") return `Not used. ${provider.problem}`;
  const behind = [...count(provider.behind, "turn", "turns"), ...count(provider.owed, "ended conversation", "ended conversations")];
  const said = behind.length === 0 ? ["Up to date."] : [`Behind by ${behind.join(" and ")}.`];
  if (provider.busy_seconds >= 1) said.push(`Busy for ${Math.round(provider.busy_seconds)} s.`);
  if (provider.rests_seconds > 0) said.push(`Next try in ${Math.ceil(provider.rests_seconds)} s.`);
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
  const to = lacks.to === "" ? "is empty" : `is an older copy from ${shortTime(new Date(lacks.to), now)}`;
  const count = lacks.messages > 0 ? lacks.messages : lacks.events;
  const what = `${count} ${lacks.messages > 0 ? "message" : "event"}${count === 1 ? " is" : "s are"} missing`;
  const missing = lacks.conversations > 0 ? `: ${what}` : "";
  return `The store ${to}${missing}. Nothing new is saved until you restore a newer copy or accept the loss: tenax doctor --accept`;
}
