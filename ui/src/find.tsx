// Find in the open conversation: the server searches all its messages, also those that are not loaded.
import { useEffect, useRef, useState } from "preact/hooks";
import { call, Problem } from "./api";
import { Icon, IconButton } from "./icon";
import { finding, go, hitWords, pathOf, type View } from "./state";
import { t } from "./text";
import type { Hit } from "./types";

const WAIT_MS = 200;
const PAGE = 200;
const FOUND_MAX = 2000;

/** The messages with these words in reading order, without those that were undone or cleared. */
async function find(conversation: string, words: string): Promise<Hit[]> {
  const found: Hit[] = [];
  let next: string | null = "";
  while (next !== null && found.length < FOUND_MAX) {
    const before: string = next === "" ? "" : `&before=${encodeURIComponent(next)}`;
    const path = `/api/search?q=${encodeURIComponent(words)}&conversation=${encodeURIComponent(conversation)}&limit=${PAGE}${before}`;
    const page: { hits: Hit[]; next: string | null } = await call("GET", path);
    found.push(...page.hits.filter((hit) => hit.standing && hit.role !== "title"));
    next = page.next;
  }
  return found.sort((a, b) => a.seq - b.seq);
}

/** The number of the first row on the screen. */
function firstVisible(): number {
  const top = document.querySelector(".transcript")?.getBoundingClientRect().top ?? 0;
  const row = [...document.querySelectorAll<HTMLElement>(".transcript [data-row]")].find((one) => one.getBoundingClientRect().bottom > top);
  return Number.parseInt(row?.dataset["row"] ?? "0", 10) || 0;
}

export function FindBar({ view }: { view: View }) {
  const box = useRef<HTMLInputElement>(null);
  const [query, setQuery] = useState("");
  const [hits, setHits] = useState<Hit[] | null>(null);
  const [at, setAt] = useState(0);
  const [problem, setProblem] = useState("");
  const words = query.trim();
  const show = (all: Hit[], n: number) => {
    const hit = all[(n + all.length) % all.length];
    if (hit === undefined) return;
    setAt((n + all.length) % all.length);
    hitWords.value = words;
    go(`${pathOf(view.id)}#${hit.role}-${hit.seq}`, "replace");
  };
  const close = () => {
    finding.value = false;
    document.querySelector<HTMLElement>(".transcript")?.focus({ preventScroll: true });
  };
  useEffect(() => {
    box.current?.focus();
    return () => {
      finding.value = false;
      if ("highlights" in CSS) CSS.highlights.delete("hit");
    };
  }, []);
  useEffect(() => {
    setProblem("");
    if (words === "") return setHits(null);
    let there = true;
    const take = (found: Hit[]) => {
      if (!there) return;
      setHits(found);
      const from = firstVisible();
      const next = found.findIndex((hit) => hit.seq >= from);
      show(found, next === -1 ? found.length - 1 : next);
    };
    const fail = (error: unknown) => there && setProblem(error instanceof Problem ? error.sentence : t("search.failed"));
    const timer = setTimeout(() => void find(view.id, words).then(take, fail), WAIT_MS);
    return () => {
      there = false;
      clearTimeout(timer);
    };
  }, [words]);
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") close();
    else if (event.key === "Enter" && !event.isComposing && hits !== null) show(hits, at + (event.shiftKey ? -1 : 1));
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const count = hits?.length ?? 0;
  return <div class="find" onKeyDown={onKeyDown}>
    <Icon name="search" />
    <input ref={box} type="text" aria-label={t("find.title")} placeholder={t("find.title")} value={query} onInput={(event) => setQuery(event.currentTarget.value)} autocomplete="off" />
    <span class="meta" role="status">
      {problem || (hits === null ? "" : count === 0 ? t("search.none") : t("find.count", { n: at + 1, all: count }))}
    </span>
    <IconButton icon="up" name={t("find.previous")} disabled={count === 0} act={() => show(hits!, at - 1)} />
    <IconButton icon="open" name={t("find.next")} disabled={count === 0} act={() => show(hits!, at + 1)} />
    <IconButton icon="close" name={t("common.close")} act={close} />
  </div>;
}
