// What the composer offers while the person types: commands after "/", and files of the conversation's folder after "@".
import { useEffect, useState } from "preact/hooks";
import { call, conversationPath } from "./api";
import { slashCommands } from "./commands";
import { useLoaded } from "./hooks";
import { score } from "./match";
import { type Option, optionAt, optionId, OptionList } from "./options";
import { t } from "./text";
import { visible } from "./words";

const LIST = "suggestions";
const FILES_MS = 120;
const FILES_MAX = 20;
interface Trigger { kind: "command" | "file"; /** The part of the text that a choice replaces. */ from: number; to: number; words: string }

/** What is being typed before the caret. A command is alone in the composer; the mark of a file follows a space or a bracket. */
function triggerAt(text: string, caret: number): Trigger | null {
  const before = text.slice(0, caret);
  const command = /^\/([\w-]*)$/.exec(before);
  if (command !== null) return text.length === caret ? { kind: "command", from: 0, to: caret, words: command[1]! } : null;
  const file = /(?:^|[\s([{"'])@([^\s`@]*)$/.exec(before);
  return file === null ? null : { kind: "file", from: caret - file[1]!.length - 1, to: caret, words: file[1]! };
}

/** A path as Markdown code, so that the model reads it as one name. */
const inTicks = (path: string): string => (path.includes("`") ? `\`\` ${path} \`\`` : `\`${path}\``);

/** The names of files that match, or none while the server has not answered. */
function useFileNames(conversation: string | null, words: string | null): string[] {
  const find = async (of: string, wanted: string) => {
    const path = conversationPath(of, `/files/names?query=${encodeURIComponent(wanted)}`);
    const { names } = await call<{ names: string[] }>("GET", path).catch(() => ({ names: [] }));
    return { of, words: wanted, names };
  };
  const { found } = useLoaded(() => (conversation === null || words === null ? null : find(conversation, words)), [conversation, words], FILES_MS);
  // While further letters are typed, those of the last answer that still match stay: the list does not flicker.
  return words === null || found?.of !== conversation ? [] : found.names.filter((name) => score(words, name) > 0 || found.words === words).slice(0, FILES_MAX);
}

interface Suggestions {
  attributes: Record<string, string | undefined>; // attributes of the text area
  onKeyDown: (event: KeyboardEvent) => boolean; // Handle a key. Returns true if the key belonged to the list.
  list: preact.JSX.Element | null;
}

/** The suggestions for a text. `insert` replaces a part of the text. */
export function useSuggestions(conversation: string | null, text: string, caret: number, insert: (from: number, to: number, words: string) => void): Suggestions {
  const [chosen, setChosen] = useState<string>();
  const [closed, setClosed] = useState<string>(); // the trigger for which the person closed the list
  const trigger = triggerAt(text, caret);
  const place = trigger === null ? undefined : `${trigger.kind}${trigger.from}`;
  const names = useFileNames(conversation, trigger?.kind === "file" && closed !== place ? trigger.words : null);
  useEffect(() => {
    if (place === undefined) setClosed(undefined);
    setChosen(undefined);
  }, [place, trigger?.words]);
  const options: Option[] = [];
  if (trigger?.kind === "command" && closed !== place)
    for (const { slash, label, icon, run } of slashCommands().filter((one) => one.slash!.startsWith(trigger.words.toLowerCase())))
      options.push({
        key: slash!,
        label: `/${slash}`,
        icon,
        detail: label,
        run: () => {
          insert(0, trigger.to, "");
          run();
        },
      });
  for (const name of names) options.push({ key: name, label: visible(name), icon: "file", run: () => trigger !== null && insert(trigger.from, trigger.to, `${inTicks(name)} `) });
  const at = Math.max(0, options.findIndex((option) => option.key === chosen));
  const option = options[at];
  const onKeyDown = (event: KeyboardEvent): boolean => {
    if (option === undefined || event.isComposing) return false;
    const next = optionAt(event, options, at);
    if (next !== undefined) setChosen(next.key);
    else if (event.key === "Escape") setClosed(place);
    else if (event.key === "Tab" && !event.shiftKey) option.run();
    else if (event.key === "Enter" && !event.shiftKey) option.run();
    else return false;
    event.preventDefault();
    event.stopPropagation();
    return true;
  };
  const name = t(trigger?.kind === "file" ? "suggest.files" : "palette.commands");
  return {
    onKeyDown,
    attributes: option === undefined ? {} : { "aria-autocomplete": "list", "aria-controls": LIST, "aria-activedescendant": optionId(LIST, option.key) },
    list: option === undefined ? null : <OptionList id={LIST} name={name} groups={[{ name, options }]} chosen={option.key} choose={(one) => one.run()} reachable />,
  };
}
