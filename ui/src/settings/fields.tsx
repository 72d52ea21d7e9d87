// The fields of forms that save at once: a refused value is explained next to its field.
import type { ComponentChildren } from "preact";
import { useEffect, useId, useState } from "preact/hooks";
import { sentenceOf } from "../api";
import { Icon } from "../icon";
import { toast } from "../state";
import { t } from "../text";

/** Runs changes, one after the other. `error` is the sentence of the last one, if it was refused. */
export function useSave() {
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const save = async (work: () => Promise<unknown>, done = t("settings.saved")): Promise<boolean> => {
    setBusy(true);
    setError("");
    try {
      await work();
      if (done !== "") toast(done);
      return true;
    } catch (refused) {
      setError(sentenceOf(refused));
      return false;
    } finally {
      setBusy(false);
    }
  };
  return { error, busy, save, setError };
}

export const Refusal = ({ text, id }: { text: string; id?: string }) => <div role="alert" id={id}>{text !== "" && <p class="refusal">{text}</p>}</div>;

/** Names the environment variable that sets a value, so that it cannot be changed here. */
export const Locked = ({ by }: { by: string }) =>
  by === "" ? null : <span class="badge locked"><Icon name="lock" />{t("settings.locked", { variable: by })}</span>;

interface About { label: string; hint?: ComponentChildren; /** The environment variable that locks the value. */ locked?: string }

interface ChoiceProps<T extends string> extends About {
  value: T;
  options: readonly (readonly [T, string, string?])[];
  save: (value: T) => Promise<unknown>;
  done?: string; // Said after a change; nothing if the change shows by itself.
}

/** One of a few values, all of them visible. An option may have an explanation. */
export function Choice<T extends string>({ label, hint, locked = "", value, options, save, done = "" }: ChoiceProps<T>) {
  const name = useId();
  const saving = useSave();
  const long = options.some((option) => option[2] !== undefined);
  return <fieldset class="field" disabled={locked !== ""}>
    <legend>{label} <Locked by={locked} /></legend>
    {hint !== undefined && <p class="meta">{hint}</p>}
    <div class={long ? "picks long" : "picks"}>
      {options.map(([option, words, about]) => <label key={option} class="option">
        <input type="radio" name={name} checked={value === option} onChange={() => void saving.save(() => save(option), done)} />
        <span>{words}{about !== undefined && <small>{about}</small>}</span>
      </label>)}
    </div>
    <Refusal text={saving.error} />
  </fieldset>;
}

interface SwitchProps extends About { on: boolean; save: (on: boolean) => Promise<unknown>; done?: string }

export function Switch({ label, hint, locked = "", on, save, done }: SwitchProps) {
  const id = useId();
  const saving = useSave();
  const [wanted, setWanted] = useState(on); // shown at once; a refused change is taken back
  useEffect(() => setWanted(on), [on]);
  const change = (next: boolean) => {
    setWanted(next);
    void saving.save(() => save(next), done).then((saved) => saved || setWanted(!next));
  };
  return <div class="field switch">
    <label>
      <input type="checkbox" role="switch" checked={wanted} disabled={locked !== ""} aria-describedby={`${id}-hint ${id}-error`}
        onChange={(event) => change(event.currentTarget.checked)} />
      {label} <Locked by={locked} />
    </label>
    <p class="meta" id={`${id}-hint`}>{hint}</p>
    <Refusal text={saving.error} id={`${id}-error`} />
  </div>;
}

interface TextProps extends About {
  value: string;
  save: (value: string) => Promise<unknown>;
  numeric?: boolean;
  secret?: boolean; // The text is a key: it is not shown, and the field is empty after it was saved.
  placeholder?: string;
}

/** A text that is saved when the person leaves the field or presses Enter. */
export function TextField({ label, hint, locked = "", value, save, numeric, secret, placeholder }: TextProps) {
  const id = useId();
  const [text, setText] = useState(value);
  const saving = useSave();
  useEffect(() => setText(value), [value]); // changed elsewhere
  const store = () => {
    if (text.trim() === value) return saving.setError("");
    void saving.save(() => save(text.trim())).then((saved) => saved && secret === true && setText(""));
  };
  return <div class="field">
    <label for={id}>{label} <Locked by={locked} /></label>
    {hint !== undefined && <p class="meta" id={`${id}-hint`}>{hint}</p>}
    <input id={id} {...({ type: secret === true ? "password" : "text" } as { type: "text" })} inputMode={numeric === true ? "decimal" : undefined}
      value={text} placeholder={placeholder} disabled={locked !== ""} aria-invalid={saving.error !== ""} aria-describedby={`${id}-hint ${id}-error`}
      autocomplete="off" onInput={(event) => setText(event.currentTarget.value)} onBlur={store}
      onKeyDown={(event) => {
        if (event.key === "Enter" && !event.isComposing) {
          event.preventDefault();
          store();
        } else if (event.key === "Escape" && text !== value) setText(value);
      }}
    />
    <Refusal text={saving.error} id={`${id}-error`} />
  </div>;
}

interface SelectProps extends About {
  value: string;
  options: readonly (readonly [string, string])[];
  save: (value: string) => Promise<unknown>;
  done?: string;
}

export function Select({ label, hint, locked = "", value, options, save, done }: SelectProps) {
  const id = useId();
  const saving = useSave();
  return <div class="field">
    <label for={id}>{label} <Locked by={locked} /></label>
    {hint !== undefined && <p class="meta">{hint}</p>}
    <select id={id} value={value} disabled={locked !== "" || saving.busy} onChange={(event) => void saving.save(() => save(event.currentTarget.value), done)}>
      {options.map(([option, words]) => <option key={option} value={option} selected={option === value}>{words}</option>)}
    </select>
    <Refusal text={saving.error} />
  </div>;
}
