// Hooks that several components share: loading, looking again, modal dialogs, counting seconds.
import type { RefObject } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { sentenceOf } from "./api";
import { attempt } from "./state";
import type { TextKey } from "./text";

interface Loaded<T> { found: T | null; problem: string }

/**
 * What `load` gives, loaded when the component is shown and again when `on` changes. An answer that comes too late is ignored. A `load` that
 * returns null keeps what was found. `wait` delays the request, while a person types.
 */
export function useLoaded<T>(load: () => Promise<T> | null, on: unknown[], wait = 0, unknown: TextKey = "error.unknown"): Loaded<T> {
  const [loaded, setLoaded] = useState<Loaded<T>>({ found: null, problem: "" });
  useEffect(() => {
    let there = true;
    const take = (found: T) => there && setLoaded({ found, problem: "" });
    const fail = (error: unknown) => there && setLoaded(({ found }) => ({ found, problem: sentenceOf(error, unknown) }));
    const begin = () => void load()?.then(take, fail);
    const timer = wait === 0 ? undefined : setTimeout(begin, wait);
    if (wait === 0) begin();
    return () => {
      there = false;
      clearTimeout(timer);
    };
  }, on);
  return loaded;
}

/** Look when the component is shown or `on` changes, when the window gets the focus, and every `ms` milliseconds if given. */
export function useLook(look: () => unknown, on: unknown[] = [], ms = 0): void {
  useEffect(() => {
    const again = () => void look();
    again();
    const timer = ms === 0 ? undefined : setInterval(again, ms);
    window.addEventListener("focus", again);
    return () => {
      clearInterval(timer);
      window.removeEventListener("focus", again);
    };
  }, on);
}

/** Whether an action of the person runs, and a function that runs one: `busy` disables its button. An error becomes a toast. */
export function useBusy(): [busy: boolean, run: <T>(work: () => Promise<T>) => Promise<T | undefined>] {
  const [busy, setBusy] = useState(false);
  const run = async <T>(work: () => Promise<T>): Promise<T | undefined> => {
    setBusy(true);
    const done = await attempt(work);
    setBusy(false);
    return done;
  };
  return [busy, run];
}

/** A dialog that is open while its component is shown. */
export function useModal(): RefObject<HTMLDialogElement | null> {
  const element = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    const open = element.current!;
    open.showModal();
    return () => open.close(); // an element that is only removed gives the focus to nobody
  }, []);
  return element;
}

/** The milliseconds of the clock, read every `ms` milliseconds; not at all if that is 0. */
export function useClock(ms: number): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (ms === 0) return;
    const timer = setInterval(() => setNow(Date.now()), ms);
    return () => clearInterval(timer);
  }, [ms]);
  return now;
}

/** A text area that is as high as its text, up to a part of the window. */
export function useGrowing(text: string, most: number): RefObject<HTMLTextAreaElement | null> {
  const area = useRef<HTMLTextAreaElement>(null);
  useLayoutEffect(() => {
    const box = area.current;
    if (box === null) return;
    box.style.height = "auto";
    box.style.height = `${Math.min(box.scrollHeight, window.innerHeight * most)}px`;
  }, [text]);
  return area;
}
