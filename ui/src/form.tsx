// The parts of forms: labelled fields, one of a few values, and what a form does instead of loading a page.
import type { ComponentChildren } from "preact";

/** A handler of an event that the browser does not handle itself. */
export const prevented = (run: () => unknown) => (event: Event): void => {
  event.preventDefault();
  void run();
};

interface FieldProps {
  label: string;
  hint?: ComponentChildren;
  value: string;
  put: (value: string) => void;
  lines?: number; // the height of a field for several lines
  type?: "password" | "url";
  required?: boolean;
  autofocus?: boolean;
  maxLength?: number;
  pattern?: string;
  autocomplete?: "on" | "off";
  spellcheck?: boolean;
}

export function Field({ label, hint, put, lines, type, autocomplete = "off", ...rest }: FieldProps) {
  const attributes = { ...rest, onInput: (event: { currentTarget: { value: string } }) => put(event.currentTarget.value) };
  return <label>
    {label}{hint !== undefined && <> <span class="meta">{hint}</span></>}
    {lines === undefined ? <input {...attributes} type={type as "url"} autocomplete={autocomplete} /> : <textarea {...attributes} rows={lines} dir="auto" />}
  </label>;
}

interface RadiosProps<T extends string> {
  legend: string;
  hidden?: boolean; // whether only screen readers read the legend
  name: string;
  options: readonly (readonly [T, string])[];
  value: T;
  choose: (value: T) => void;
}

/** One of a few values. */
export const Radios = <T extends string>({ legend, hidden, name, options, value, choose }: RadiosProps<T>) => <fieldset>
  <legend class={hidden ? "hidden" : undefined}>{legend}</legend>
  {options.map(([option, words]) => <label class="radio" key={option}>
    <input type="radio" name={name} checked={value === option} onChange={() => choose(option)} />{words}
  </label>)}
</fieldset>;
