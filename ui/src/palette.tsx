// The palette: conversations, commands, settings and messages in one list that is filtered while the person types.
import { useLayoutEffect, useState } from "preact/hooks";
import { call } from "./api";
import { type Command, deepCommands, modeCommands, modelCommands, openCommands, pageCommands, settingsCommands, themeCommands } from "./commands";
import { useLoaded, useModal } from "./hooks";
import { Icon } from "./icon";
import { hitPath, searchFor } from "./list";
import { best, score } from "./match";
import { type Option, optionAt, type OptionGroup, optionId, OptionList } from "./options";
import { go, hitWords, listed, palette, pathOf, route, titleOf } from "./state";
import { t } from "./text";
import type { Hit, Listed } from "./types";
import { shortTime, visible } from "./words";

const LIST = "palette-list";
const RECENT_MAX = 5;
const FOUND_MAX = 8;
const SEARCH_MS = 200;

const conversationOption = (one: Listed): Option => ({
  key: `conversation-${one.id}`,
  label: visible(titleOf(one)),
  icon: one.archived ? "archive" : one.temporary ? "temporary" : one.pinned ? "pin" : "chat",
  detail: shortTime(new Date(one.updated_at)),
  run: () => go(pathOf(one.id)),
});

const hitOption = (hit: Hit, words: string): Option => ({
  key: `hit-${hit.conversation}-${hit.seq}-${hit.role}`,
  label: visible(titleOf({ title: hit.title })),
  icon: "search",
  detail: visible(hit.text),
  run: () => {
    hitWords.value = words;
    go(hitPath(hit));
  },
});

const commandOption = ({ key, label, icon, bad, run }: Command): Option => ({ key, label, icon, run, ...(bad && { bad }) });

/** The groups for the typed words. The group with the best match is first; found messages are last, because they come later. */
function groupsFor(words: string, hits: Hit[]): OptionGroup[] {
  const titles = words === "" ? listed.value.filter((one) => !one.archived && one.id !== route.value.conversation).slice(0, RECENT_MAX) : best(words, listed.value, titleOf).slice(0, FOUND_MAX);
  const commands = (all: Command[]) => best(words, all, ({ label, slash }) => `${label} ${slash ?? ""}`).map(commandOption);
  const groups = [
    { name: t(words === "" ? "palette.recent" : "list.title"), options: titles.map(conversationOption) },
    { name: t("menu.title"), options: commands([...openCommands(), ...(words === "" ? [] : deepCommands())]) },
    { name: t("palette.commands"), options: commands([...pageCommands(), ...(words === "" ? [] : [...modelCommands(), ...modeCommands(), ...themeCommands()])]) },
    { name: t("settings.title"), options: commands(settingsCommands()) },
  ];
  const top = (group: OptionGroup) => Math.max(0, ...group.options.map((option) => score(words, option.label)));
  groups.sort((a, b) => top(b) - top(a));
  if (words !== "") {
    const all = { key: "search", label: t("palette.search", { words }), icon: "search" as const, run: () => searchFor(words) };
    groups.push({ name: t("palette.messages"), options: [...hits.map((hit) => hitOption(hit, words)), all] });
  }
  return groups.filter((group) => group.options.length > 0);
}

export function Palette() {
  const element = useModal();
  const [query, setQuery] = useState(palette.value ?? "");
  const [chosen, setChosen] = useState<string>();
  const words = query.trim();
  // Without an answer the titles and the commands are still there; "Search all messages" shows the reason.
  const search = () => call<{ hits: Hit[] }>("GET", `/api/search?q=${encodeURIComponent(words)}&limit=${FOUND_MAX}`).then(({ hits }) => ({ words, hits }));
  const { found } = useLoaded(() => (words === "" ? null : search()), [words], SEARCH_MS);
  const hits = found?.words === words ? found.hits.filter((hit) => hit.role !== "title") : [];
  const groups = groupsFor(words, hits);
  const options = groups.flatMap((group) => group.options);
  const at = Math.max(0, options.findIndex((option) => option.key === chosen));
  // The palette may be opened again before it is removed.
  useLayoutEffect(() => { if (element.current?.open === false) element.current.showModal(); });
  const run = (option: Option) => {
    element.current?.close(); // first, because it moves the focus back
    palette.value = null;
    option.run();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const next = optionAt(event, options, at);
    if (next !== undefined) setChosen(next.key);
    else if (event.key === "Enter" && !event.isComposing && options[at] !== undefined) run(options[at]);
    else if (event.key === "Escape") palette.value = null; // the event of the dialog comes later, when the palette may be open again
    else return;
    event.preventDefault();
  };
  return (
    <dialog ref={element} class="palette" aria-label={t("palette.title")} onClose={() => element.current?.open === false && (palette.value = null)} onClick={(event) => event.target === element.current && (palette.value = null)}>
      <div class="search">
        <Icon name="search" />
        <input type="text" role="combobox" aria-label={t("palette.title")} aria-autocomplete="list" aria-expanded={options.length > 0}
          aria-controls={LIST} aria-activedescendant={options[at] && optionId(LIST, options[at].key)} placeholder={t("palette.placeholder")}
          value={query}
          onInput={(event) => {
            setQuery(event.currentTarget.value);
            setChosen(undefined);
          }}
          onKeyDown={onKeyDown} autofocus autocomplete="off" spellcheck={false} />
      </div>
      <OptionList id={LIST} name={t("palette.results")} groups={groups} chosen={options[at]?.key} choose={run} />
    </dialog>
  );
}
