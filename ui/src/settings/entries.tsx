// Lists of things that the server keeps, such as rules and schedules: load, add and remove them.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { call } from "../api";
import { prevented } from "../form";
import { useLook } from "../hooks";
import { attempt, toast } from "../state";
import { t } from "../text";

/**
 * The entries below `key` in the answer of `path`, and a function that changes them. Every change answers with all entries. With `ms` the list is
 * loaded again so often, and one that does not load keeps the last entries.
 */
export function useEntries<T>(path: string, key: string, ms = 0) {
  const [found, setFound] = useState<T[] | null>(null);
  const take = (answer: Record<string, T[]>) => setFound(answer[key] ?? []);
  const load = () => call<Record<string, T[]>>("GET", path).then(take);
  useLook(() => (ms === 0 ? attempt(load) : load().catch(() => undefined)), [], ms);
  const change = (method: string, rest: string, done: string, body?: unknown, headers?: Record<string, string>) => attempt(async () => {
    take(await call<Record<string, T[]>>(method, path + rest, body, headers));
    toast(done);
    return true;
  });
  return { found, change };
}

/** Removes an entry. After the entry and its button have gone, the keyboard goes on at the first element of the selector `next`. */
export const RemoveButton = ({ label, act, next }: { label: string; act: () => Promise<unknown>; next: string }) =>
  <button type="button" class="quiet" aria-label={label} onClick={() => void act().then(() => document.querySelector<HTMLElement>(next)?.focus())}>{t("common.remove")}</button>;

/** A form that adds an entry, folded until the person wants it. */
export const AddForm = ({ title, add, children }: { title: string; add: () => unknown; children: ComponentChildren }) => <details class="fold">
  <summary>{title}</summary>
  <form class="connect" aria-label={title} onSubmit={prevented(add)}>
    {children}
    <div class="choices"><button type="submit" class="main">{t("common.add")}</button></div>
  </form>
</details>;
