// A list of options below or above an input. The focus stays in the input, which names the chosen option (aria-activedescendant).
import { useEffect } from "preact/hooks";
import { Icon, type IconName } from "./icon";

export interface Option {
  key: string;
  label: string;
  icon?: IconName;
  detail?: string; // smaller, after or below the label
  bad?: boolean;
  run: () => void;
}

export interface OptionGroup { name: string; options: Option[] }

interface ListProps {
  id: string;
  name: string; // the name of the list
  groups: OptionGroup[];
  chosen: string | undefined; // the key of the chosen option
  choose: (option: Option) => void;
  reachable?: boolean; // Whether Tab reaches the list. A list beside a text area must be reachable to be scrolled.
}

export const optionId = (list: string, key: string): string => `${list}-${key.replace(/[^\w-]/g, (letter) => `_${letter.codePointAt(0)!.toString(16)}`)}`;

/** The option that an arrow key leads to, or undefined for other keys. */
export function optionAt<T>(event: KeyboardEvent, options: T[], at: number): T | undefined {
  if (event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return undefined;
  const to = { ArrowDown: at + 1, ArrowUp: at - 1 + options.length }[event.key];
  return to === undefined ? undefined : options[to % options.length];
}

export function OptionList({ id, name, groups, chosen, choose, reachable }: ListProps) {
  useEffect(() => { if (chosen !== undefined) document.getElementById(optionId(id, chosen))?.scrollIntoView({ block: "nearest" }); }, [chosen]);
  return <div role="listbox" id={id} class="options" aria-label={name} tabIndex={reachable ? 0 : undefined}>
    {groups.map((group) => <div key={group.name} role="group" aria-label={group.name}>
      {groups.length > 1 && <h2 role="presentation">{group.name}</h2>}
      {group.options.map((option) => <div key={option.key} id={optionId(id, option.key)} role="option" aria-selected={option.key === chosen}
        class={option.bad ? "bad" : undefined} onMouseDown={(event) => event.preventDefault()} onClick={() => choose(option)}>
        {option.icon !== undefined && <Icon name={option.icon} />}
        <span class="title" dir="auto">{option.label}</span>
        {option.detail !== undefined && <small dir="auto">{option.detail}</small>}
      </div>)}
    </div>)}
  </div>;
}
