// The types of the HTTP API, as the page uses them.

export interface Row {
  id: string;
  key: [number, number, number];
  kind: "user" | "assistant" | "system" | "tool" | "marker" | "notice" | "summary" | "memory" | "files";
  at: number; // microseconds since 1970
  text?: string;
  state?: string;
  run?: string | null;
  author?: string;
  thought?: string; // The reasoning of the model; it grows while the model streams.
  thought_seconds?: number; // The duration of the reasoning; missing while it grows.
  name?: string;
  arguments?: string; // JSON text, exactly as the model wrote it
  touches?: string;
  late?: boolean;
  erased?: boolean;
  parts?: { type?: string; name?: string; media_type?: string; blob?: string; height?: number }[];
  model?: string;
  action?: string; // The change of a fact: added, replaced or removed.
  by?: string;
  fact?: string;
  version?: number;
  of?: string; // the turn that changed files
  child?: string; // the conversation of the sub-agent, and whether it waits for an answer of the person
  child_asks?: boolean;
  started?: number; // Microseconds: the time of the request of an answer, or of the start of a tool call.
  seconds?: number | null; // The duration of a tool call; missing while it runs.
  wait?: number; // the seconds from `at` to the next attempt of a failed call, and the number of failed attempts so far
  attempt?: number;
  versions?: number[]; // the numbers of all versions of a message, if there are several
}

/** A page of rows, and the queued messages. `next` is the end of the page above. */
export interface RowPage { rows: Row[]; waiting: Row[]; next: string | null }

export type Change =
  | { type: "put"; row: Row }
  | { type: "grow"; id: string; offset: number; text: string; field?: "text" | "thought" }
  | { type: "drop"; id: string };

export interface Listed {
  id: string;
  title: string | null;
  words: string | null;
  messages: number;
  source: string;
  opened_at: string;
  updated_at: string;
  pinned: boolean;
  archived: boolean;
  running: boolean;
  temporary?: boolean;
  parent?: string | null; // the parent conversation, if this is a sub-agent
  state: "" | "running" | "asks" | "failed";
  model: string; // The label of the chosen model; "" for the default.
  mode: Mode;
  project: string; // the id of the project, or ""
  unread: boolean; // whether a run ended after the person looked last, and the number of the last event that the person has seen
  read: number;
}

/** The mode of approvals: ask as the rules say, accept changes of files, or only plan. */
export type Mode = "ask" | "edits" | "plan";
/** An empty folder is the folder of the user, an empty model the default. */
export interface Project { id: string; name: string; folder: string; instructions: string; model: string }

export interface Usage {
  tokens_in: number;
  tokens_out: number;
  cost: number | null;
  unpriced: number;
  context_used: number | null;
  context: number | null;
}

export interface Offer { id: string; title: string; detail: string; kind: "key" | "local" | "practice" }
export interface Model { label: string; name: string; kind: "practice" | "script" | "local" | "cloud"; url?: string }
/** A provider or a local server with a known URL. `keys` is the page on which a person gets a key. */
export interface Preset { id: string; title: string; api: "openai" | "anthropic"; url: string; keys: string }

export interface Setup {
  user: string;
  version: string;
  model: Model | null;
  models: Model[]; // All connected models. Empty for users other than the owner.
  offers: Offer[];
  presets: Preset[];
  practice: boolean;
  chat_apps: boolean; // whether Tenax has an account in a chat app
  file: string;
  terminal: string;
}

export interface Hit {
  conversation: string;
  title: string | null;
  seq: number;
  role: string;
  text: string;
  at: string;
  standing: boolean; // false if the message was undone or cleared
}

/** A version of a memory. */
export interface Fact {
  id: string;
  version: number;
  state: "standing" | "removed";
  text: string;
  about: "profile" | "note";
  by: "person" | "model" | "review" | "import";
  at: string;
  conversation: string | null;
  seq: number | null;
  title: string | null;
  scope: string | null;
}

/** A rule for tools. Both patterns use shell wildcards. */
export interface Rule { verdict: "allow" | "deny"; tool: string; touches: string }

/** An approval, and the patterns that can be allowed in this conversation, or always with a rule. */
export interface Question {
  message: number;
  call: string;
  conversation: string[];
  always: string[];
  notes: string[]; // What each pattern covers beyond the exact call; empty for the exact call.
  diff: string; // The change of a file as a unified diff, as of this request; empty if there is none to show.
  badge: string; // what the call can reach, such as "sandbox, no network"
}

/** An external memory provider. */
export interface Provider {
  provider: string;
  problem: string;
  behind: number;
  owed: number;
  busy_seconds: number;
  error: string;
  rests_seconds: number;
  letters: { conversation: string; seq: number; error: string; at: number }[]; // Failed deliveries. `at` is in microseconds since 1970.
}

/** An uploaded attachment. */
export interface Attached {
  thumb?: string; // a small copy of a picture, made by this browser
  blob: string;
  name: string;
  media_type: string;
  bytes: number;
}

/** How a message affects an answer that is being written. */
export type How = "queue" | "steer" | "interrupt" | "take over";
/** What the store lost, because it is an older copy. */
export interface Lacks { messages: number; events: number; conversations: number; to: string }

/** A frame of the event stream. */
export type Frame =
  | { type: "hello"; incarnation: string; version: string }
  | { type: "list"; conversations: Listed[]; gone: string[]; reset: boolean }
  | ({ type: "rows"; conversation: string; at: number } & RowPage)
  | { type: "changes"; conversation: string; at: number; changes: Change[] }
  | { type: "gone"; conversation: string }
  | { type: "held"; conversation: string; bytes: number }
  | { type: "store"; lacks: Lacks | null }
  | { type: "preferences"; preferences: Record<string, unknown> }
  | { type: "projects"; projects: Project[] }
  | { type: "bye" };

export type Connection = "connecting" | "live" | "lost" | "denied";

/** Messages from a tab to the hub, and from the hub to a tab. */
export type ToHub =
  | { type: "join"; key: string }
  | { type: "key"; key: string }
  | { type: "watch"; conversation: string | null }
  | { type: "again"; conversation: string }
  | { type: "now" }
  | { type: "bye" };
export type FromHub = { type: "connection"; state: Connection } | { type: "frame"; frame: Frame };
