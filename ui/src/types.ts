// The words of the server's HTTP contract, as the page reads them.

export interface Row {
  id: string;
  key: [number, number, number];
  kind: "user" | "assistant" | "system" | "tool" | "marker" | "notice" | "summary" | "memory" | "files";
  /** Microseconds since 1970. */
  at: number;
  text?: string;
  state?: string;
  run?: string | null;
  author?: string;
  thought?: string;
  name?: string;
  /** JSON text, exactly as the model wrote it. */
  arguments?: string;
  touches?: string;
  late?: boolean;
  erased?: boolean;
  parts?: { type?: string; name?: string; media_type?: string; blob?: string; height?: number }[];
  model?: string;
  /** What was done with a fact: added, replaced or removed. */
  action?: string;
  by?: string;
  fact?: string;
  version?: number;
  /** The turn that changed files. */
  of?: string;
  /** The conversation of the sub-agent, and whether somebody is asked something there. */
  child?: string;
  child_asks?: boolean;
}

/** Rows in their order, and the messages that wait. `next` is where the page above ends. */
export interface RowPage {
  rows: Row[];
  waiting: Row[];
  next: string | null;
}

export type Change =
  | { type: "put"; row: Row }
  | { type: "grow"; id: string; offset: number; text: string }
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
  /** The conversation whose sub-agent works here. */
  parent?: string | null;
}

export interface Usage {
  tokens_in: number;
  tokens_out: number;
  cost: number | null;
  unpriced: number;
  context_used: number | null;
  context: number | null;
}

export interface Offer {
  id: string;
  title: string;
  detail: string;
  kind: "key" | "local" | "practice";
}

export interface Setup {
  user: string;
  version: string;
  model: { label: string; name: string; kind: "practice" | "script" | "local" | "cloud"; url?: string } | null;
  offers: Offer[];
  practice: boolean;
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
}

/** A version of something that is remembered. */
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

/** What was decided for all calls of a kind. Both patterns are as a shell's. */
export interface Rule {
  verdict: "allow" | "deny";
  tool: string;
  touches: string;
}

/** A question of a tool, and the patterns that may be allowed in this conversation, or always by a rule. */
export interface Question {
  message: number;
  call: string;
  conversation: string[];
  always: string[];
  /** What each pattern leaves open; empty for the exact call. */
  notes: string[];
}

/** A memory beside the built-in one. */
export interface Provider {
  provider: string;
  problem: string;
  behind: number;
  owed: number;
  busy_seconds: number;
  error: string;
  rests_seconds: number;
  /** What it could not take. `at` is microseconds since 1970. */
  letters: { conversation: string; seq: number; error: string; at: number }[];
}

/** What was uploaded for a message. */
export interface Attached {
  blob: string;
  name: string;
  media_type: string;
  bytes: number;
}

/** How a message goes in while an answer is being written. */
export type How = "queue" | "steer" | "interrupt" | "take over";

/** What the store had stored and lacks now: an older copy was put back. */
export interface Lacks {
  messages: number;
  events: number;
  conversations: number;
  to: string;
}

/** What comes down the event stream. */
export type Frame =
  | { type: "hello"; incarnation: string; version: string }
  | { type: "list"; conversations: Listed[]; gone: string[]; reset: boolean }
  | ({ type: "rows"; conversation: string; at: number } & RowPage)
  | { type: "changes"; conversation: string; at: number; changes: Change[] }
  | { type: "gone"; conversation: string }
  | { type: "held"; conversation: string; bytes: number }
  | { type: "store"; lacks: Lacks | null }
  | { type: "bye" };

export type Connection = "connecting" | "live" | "lost" | "denied";

/** What a tab tells the hub, and what the hub tells a tab. */
export type ToHub =
  | { type: "join"; key: string }
  | { type: "key"; key: string }
  | { type: "watch"; conversation: string | null }
  | { type: "again"; conversation: string }
  | { type: "now" }
  | { type: "bye" };
export type FromHub = { type: "connection"; state: Connection } | { type: "frame"; frame: Frame };
