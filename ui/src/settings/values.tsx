// The settings of the configuration file that a person changes. Each is saved at once; an environment variable locks it.
import { signal } from "@preact/signals";
import { call } from "../api";
import { useLook } from "../hooks";
import { attempt, isOwner, loadSetup } from "../state";
import { t, type TextKey } from "../text";
import { visible } from "../words";
import { RemoveButton } from "./entries";
import { Choice, Select, Switch, TextField } from "./fields";

interface Value {
  name: string; // Such as `budget.day` or `models.main.temperature`.
  kind: "bool" | "int" | "float" | "text" | "choice" | "list" | "secret";
  value: unknown; // always null for a key
  default: unknown;
  is_set: boolean;
  choices?: string[];
  locked?: string; // the environment variable that sets it
  restart?: boolean; // whether a change applies only at the next start
}
export interface Answer { settings: Value[]; file: string; /** The folder with the stored data. */ data: string }
/** The parameters of a model. */
export const PARAMETERS = ["effort", "temperature", "max_tokens", "context", "price_input", "price_output", "sees", "key"] as const;
type SettingName =
  | "backup.every" | "backup.folder" | "backup.keep" | "budget.conversation" | "budget.day" | "context_files" | "memory.providers" | "memory.review"
  | "resume" | "search.brave" | "search.searxng" | "search.tavily" | "serve.sign_in_days" | "speech.key" | "speech.model" | "speech.timeout_seconds"
  | "speech.url" | "tools.folder" | `model.${(typeof PARAMETERS)[number]}`;
/** The words for the choices. A value of a newer server is shown as it is. */
const CHOICES: Record<string, TextKey> = {
  auto: "setting.resume.auto", ask: "setting.resume.ask", low: "setting.model.effort.low", medium: "setting.model.effort.medium",
  high: "setting.model.effort.high", never: "setting.backup.never", day: "setting.backup.day", week: "setting.backup.week",
};
const FEW = 2;
/** The settings as the server last sent them. */
export const answer = signal<Answer | null>(null);

export async function change(name: string, value: unknown): Promise<void> {
  answer.value = await call<Answer>("PATCH", "/api/settings", { [name]: value });
  void loadSetup();
}

/** Load the settings of the owner, and again when the window gets the focus: a person may edit the file. */
export function useSettings(): void {
  const owner = isOwner.value;
  useLook(() => owner && attempt(async () => (answer.value = await call<Answer>("GET", "/api/settings"))), [owner]);
}

export const valueOf = (name: string): Value | undefined => answer.value?.settings.find((setting) => setting.name === name);
const plain = (value: unknown): string => (value === null || value === undefined ? "" : Array.isArray(value) ? value.join(", ") : String(value));

/** Text as the value of a setting. Nothing restores the default; the server explains what it does not accept. */
function parsed(text: string, kind: Value["kind"]): unknown {
  if (text === "") return null;
  if (kind === "list") return text.split(/[\s,]+/).filter((word) => word !== "");
  return (kind === "int" || kind === "float") && Number.isFinite(Number(text)) ? Number(text) : text;
}

/** The field of a setting. `of` is its full name, if it is one of a model. */
export function Setting({ name, of = name }: { name: SettingName; of?: string }) {
  const found = valueOf(of);
  if (found === undefined) return null;
  const { kind, choices = [], locked = "" } = found;
  const hint = [t(`setting.${name}.about`), found.restart === true ? t("settings.next_start") : ""].join(" ").trim();
  const about = { label: t(`setting.${name}`), hint, locked };
  const save = (value: unknown) => change(of, value);
  const wordOf = (choice: string): string => (CHOICES[choice] === undefined ? visible(choice) : t(CHOICES[choice]));
  if (kind === "bool" && found.default !== null) return <Switch {...about} on={found.value === true} save={save} />;
  if (kind === "bool")
    return <Select {...about} value={plain(found.value)} options={[["", t("setting.by_model")], ["true", t("setting.yes")], ["false", t("setting.no")]]} save={(text) => save(text === "" ? null : text === "true")} />;
  if (kind === "choice" && choices.length <= FEW && found.default !== null)
    return <Choice {...about} value={plain(found.value)} options={choices.map((choice) => [choice, wordOf(choice)])} save={save} done={t("settings.saved")} />;
  if (kind === "choice")
    return <Select {...about} value={plain(found.value)} options={[...(found.default === null ? [["", t("setting.by_provider")] as const] : []), ...choices.map((choice) => [choice, wordOf(choice)] as const)]} save={(choice) => save(choice || null)} />;
  if (kind === "secret") return <KeyField {...about} set={found.is_set} save={save} />;
  return <TextField {...about} numeric={kind === "int" || kind === "float"} value={plain(found.value)} placeholder={visible(plain(found.default))} save={(text) => save(parsed(text, kind))} />;
}

/** A key is only written: it is replaced or removed, never shown. */
function KeyField({ set, save, ...about }: { label: string; hint: string; locked: string; set: boolean; save: (key: string | null) => Promise<void> }) {
  return <>
    <TextField {...about} secret value="" placeholder={set ? t("setting.key_set") : t("setting.key_none")} save={save} />
    {set && about.locked === "" && <RemoveButton label={t("common.remove_named", { name: about.label })} act={() => attempt(() => save(null))} next=".section h1" />}
  </>;
}
