// Calls of the server. A refusal is a Problem with the server's own sentence; no answer at all is a Problem with status 0.
import { recall, remember } from "./memory";

/** Where the key of this device is kept. Another port of the host gets the cookie, and cannot read this. */
export const KEY = "tenax.key";
/** Where the name of the user to whom the key belongs is kept. */
const USER = "tenax.user";
let user: string | null = null;

/** The user of this tab. It stays the same when another tab signs somebody else in. */
export const me = (): string => (user ??= recall(USER) ?? "");
export const isStillMe = (): boolean => (recall(USER) ?? "") === me();

/** The browser is this user's now. The name is written before the key: who reads the key first knows whose it is. */
export function become(name: string, key?: string): void {
  user = name;
  remember(USER, name);
  if (key !== undefined) remember(KEY, key);
}

/** The person signed out here: the browser is nobody's now. This tab keeps its user, and loads again if somebody else signs in. */
export function forgetUser(): void {
  remember(USER, "");
}

/** What every call sends besides the cookie. */
export const proof = (key = recall(KEY) ?? ""): Record<string, string> => (key === "" ? {} : { "Tenax-Key": key });

export class Problem extends Error {
  constructor(
    readonly status: number,
    detail: string,
    readonly hint = "",
  ) {
    super(detail);
  }

  /** Nothing is wrong with the request: the same one may succeed later. */
  get passing(): boolean {
    return this.status === 0 || this.status === 401 || this.status === 408 || this.status === 429 || this.status >= 500;
  }

  get sentence(): string {
    return `${this.message} ${this.hint.charAt(0).toUpperCase()}${this.hint.slice(1)}`.trimEnd();
  }
}

async function problem(answer: Response): Promise<Problem> {
  let detail = "";
  let hint = "";
  try {
    const body = (await answer.json()) as { detail?: string; title?: string; hint?: string };
    detail = body.detail ?? body.title ?? "";
    hint = body.hint ?? "";
  } catch {
    // Not ours: something between the page and the server answered.
  }
  return new Problem(answer.status, detail || `The server answered ${answer.status}.`, hint);
}

export async function call<T = void>(
  method: string,
  path: string,
  body?: unknown,
  headers: Record<string, string> = {},
): Promise<T> {
  const init: RequestInit = { method, headers: { ...proof(), ...headers }, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    init.headers = { ...init.headers, "Content-Type": "application/json" };
    init.body = JSON.stringify(body);
  }
  let answer: Response;
  try {
    answer = await fetch(path, init);
  } catch {
    throw new Problem(0, "The server does not answer.", "What you saw is stored; try again when it is back.");
  }
  if (!answer.ok) throw await problem(answer);
  const text = await answer.text();
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

export const conversationPath = (id: string, rest = ""): string => `/api/conversations/${encodeURIComponent(id)}${rest}`;

export const factPath = (id: string, rest = ""): string => `/api/memory/${encodeURIComponent(id)}${rest}`;

/** A random name for a message, so that the server takes it once however often it is sent. */
export function newKey(): string {
  if (typeof crypto.randomUUID === "function") return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // plain http elsewhere than on localhost
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = [...bytes].map((each) => each.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
