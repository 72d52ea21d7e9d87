// The preferences of the person: rows of the store, the same in every browser and live. A copy in this browser avoids a flash at load.
import { computed, effect, signal } from "@preact/signals";
import { call } from "./api";
import { recall, remember } from "./browserStorage";
import { chooseLanguage } from "./text";
import type { Mode, Project } from "./types";

export const THEMES = ["system", "light", "dark"] as const;
export const SIZES = ["small", "normal", "large", "huge"] as const;
export const DENSITIES = ["normal", "compact"] as const;
export const SENDS = ["enter", "ctrl-enter"] as const;
export const MODES = ["ask", "edits", "plan"] as const satisfies readonly Mode[];
const COPY = "tenax.preferences";
type Values = Readonly<Record<string, unknown>>;

function readCopy(): Values {
  try {
    const copy = JSON.parse(recall(COPY) ?? "{}") as unknown;
    return typeof copy === "object" && copy !== null ? (copy as Values) : {};
  } catch {
    return {};
  }
}

/** The values by name. Another program may have stored any JSON, so read them with the signals below. */
const values = signal<Values>(readCopy());
const oneOf = <T extends string>(name: string, options: readonly T[], without: T) => computed(() => options.find((option) => option === values.value[name]) ?? without);
export const theme = oneOf("theme", THEMES, "system");
export const size = oneOf("size", SIZES, "normal");
export const density = oneOf("density", DENSITIES, "normal");
export const sendKey = oneOf("send", SENDS, "enter");
/** The mode of approvals of a new conversation. */
export const defaultMode = oneOf("mode", MODES, "ask");
export const notifies = computed(() => values.value["notifications"] === true);
/** The language of the page; "" follows the browser. */
export const chosenLanguage = computed(() => (typeof values.value["language"] === "string" ? values.value["language"] : ""));
/** The labels of the favourite models. */
export const favourites = computed(() => {
  const stored = values.value["favourites"];
  return Array.isArray(stored) ? stored.filter((label): label is string => typeof label === "string") : [];
});

export const projects = signal<Project[]>([]);
/** The project that the list shows; "" shows all conversations. */
export const listProject = computed(() => projects.value.find(({ id }) => id === values.value["project"])?.id ?? "");

let stored = values.peek(); // as the server has them
const unsaved = new Map<string, unknown>(); // changes that the server has not confirmed yet

/** Take the preferences that the server sent. They may lack changes that are on their way to the server. */
export function takePreferences(next: Values): void {
  stored = next;
  values.value = { ...next, ...Object.fromEntries(unsaved) };
  remember(COPY, JSON.stringify(values.value));
}

/** Change a preference: here at once, and everywhere when the server has stored it. A refused change is taken back. */
export async function prefer(name: string, value: unknown): Promise<void> {
  unsaved.set(name, value);
  takePreferences(stored);
  try {
    stored = (await call<{ preferences: Values }>("PATCH", "/api/preferences", { [name]: value })).preferences;
  } finally {
    if (unsaved.get(name) === value) unsaved.delete(name);
    takePreferences(stored);
  }
}

/** Show the look that the person chose, now and after every change. */
export function startPreferences(): void {
  const root = document.documentElement;
  const mark = (name: string, value: string, plain: string) => (value === plain ? delete root.dataset[name] : (root.dataset[name] = value));
  effect(() => {
    mark("theme", theme.value, "system");
    mark("size", size.value, "normal");
    mark("density", density.value, "normal");
  });
  let shown = chosenLanguage.peek(); // text.ts has its own copy of the language
  effect(() => {
    const next = chosenLanguage.value;
    if (next === shown) return;
    shown = next;
    void chooseLanguage(next).catch(() => undefined); // the file did not load: the page stays as it is
  });
}
