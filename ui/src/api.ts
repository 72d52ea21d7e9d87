// Calls to the server. An error response becomes a Problem with the server's sentence; no response at all has status 0.
import { recall, remember } from "./browserStorage";
import { KEY, proof } from "./key";
import { urlOf } from "./paths";
import { t, type TextKey } from "./text";

/** The storage key of the name of the signed-in user. */
const USER = "tenax.user";
let user: string | null = null;
/** The user of this tab. It stays the same when another tab signs somebody else in. */
export const me = (): string => (user ??= recall(USER) ?? "");
export const isStillMe = (): boolean => (recall(USER) ?? "") === me();

/** Sign in as this user. The name is written before the key, so that a tab that reads a new key knows its user. */
export function become(name: string, key?: string): void {
  user = name;
  remember(USER, name);
  if (key !== undefined) remember(KEY, key);
}

/** Sign out this browser. This tab keeps its user, and reloads if another user signs in. */
export function forgetUser(): void { remember(USER, ""); }

export class Problem extends Error {
  constructor(readonly status: number, detail: string, readonly hint = "") { super(detail); }

  /** Whether the same request may succeed later. */
  get passing(): boolean { return this.status === 0 || this.status === 401 || this.status === 408 || this.status === 429 || this.status >= 500; }

  get sentence(): string { return `${this.message} ${this.hint.charAt(0).toUpperCase()}${this.hint.slice(1)}`.trimEnd(); }
}

/** The sentence for an error of a request. */
export const sentenceOf = (error: unknown, unknown: TextKey = "error.unknown"): string => (error instanceof Problem ? error.sentence : t(unknown));

async function problem(answer: Response): Promise<Problem> {
  const body = ((await answer.json().catch(() => null)) ?? {}) as { detail?: string; title?: string; hint?: string }; // a proxy may answer without JSON
  return new Problem(answer.status, (body.detail ?? body.title) || t("error.status", { status: String(answer.status) }), body.hint ?? "");
}

/** Request a text. */
export async function callText(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<string> {
  const init: RequestInit = { method, headers: { ...proof(), ...headers }, cache: "no-store", credentials: "same-origin" };
  if (body !== undefined) {
    init.headers = { ...init.headers, "Content-Type": "application/json" };
    init.body = JSON.stringify(body);
  }
  let answer: Response;
  try { answer = await fetch(urlOf(path), init); } catch { throw new Problem(0, t("error.no_response"), t("error.saved")); }
  if (!answer.ok) throw await problem(answer);
  return answer.text();
}

/** Request a JSON value. */
export async function call<T = void>(method: string, path: string, body?: unknown, headers: Record<string, string> = {}): Promise<T> {
  const text = await callText(method, path, body, headers);
  return (text === "" ? undefined : JSON.parse(text)) as T;
}

export const conversationPath = (id: string, rest = ""): string => `/api/conversations/${encodeURIComponent(id)}${rest}`;
export const factPath = (id: string, rest = ""): string => `/api/memory/${encodeURIComponent(id)}${rest}`;

/** A random idempotency key, so that the server stores a message once however often it is sent. */
export function newKey(): string {
  if (typeof crypto.randomUUID === "function") return crypto.randomUUID();
  const bytes = crypto.getRandomValues(new Uint8Array(16)); // plain http, except on localhost
  bytes[6] = (bytes[6]! & 0x0f) | 0x40;
  bytes[8] = (bytes[8]! & 0x3f) | 0x80;
  const hex = [...bytes].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})(.{12})$/, "$1-$2-$3-$4-$5");
}
