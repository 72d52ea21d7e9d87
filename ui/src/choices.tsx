// What the person chose for a conversation: the model, the mode of approvals and the project. Before the first message the choice waits here.
import { computed, signal } from "@preact/signals";
import { call, conversationPath } from "./api";
import { Icon, type IconName } from "./icon";
import { Popup, Ticked } from "./popup";
import { defaultMode, listProject, MODES, projects } from "./preferences";
import { attempt, current, go, putListed, route, setup } from "./state";
import { t } from "./text";
import type { Listed, Mode, Model } from "./types";
import { visible } from "./words";

export interface Choice { model?: string; mode?: Mode; project?: string }
/** The choice for the next new conversation. */
export const pending = signal<Choice>({});
/** The project of the open conversation, or of the next one: the chosen one, or the one that the list shows. */
const chosenProject = computed(() => (route.value.conversation === null ? (pending.value.project ?? listProject.value) : current.value?.project) ?? "");
export const chosenMode = computed<Mode>(() => (route.value.conversation === null ? (pending.value.mode ?? defaultMode.value) : (current.value?.mode ?? "ask")));

/** The model that answers in the open conversation: the chosen one, that of the project, or the default. */
export const chosenModel = computed<Model | null>(() => {
  const found = setup.value;
  const label = route.value.conversation === null ? pending.value.model : current.value?.model;
  const project = projects.value.find(({ id }) => id === chosenProject.value);
  const known = (wanted: string | undefined) => (wanted ? found?.models.find((model) => model.label === wanted) : undefined);
  return known(label) ?? known(project?.model) ?? found?.model ?? null;
});

/** Store a choice for the open conversation, or keep it for the next one. */
export function chooseFor(choice: Choice): Promise<boolean | undefined> {
  const id = route.value.conversation;
  if (id === null) {
    pending.value = { ...pending.value, ...choice };
    return Promise.resolve(true);
  }
  return attempt(async () => {
    putListed(await call<Listed>("PATCH", conversationPath(id), choice));
    return true;
  });
}

/** Take the choice for a conversation that is opened now. */
export function takeChoice(): Choice {
  const choice = { mode: chosenMode.value, ...(listProject.value && { project: listProject.value }), ...pending.value };
  pending.value = {};
  return choice;
}

const ICONS: Record<Mode, IconName> = { ask: "shield", edits: "change", plan: "todo" };

/** The mode of approvals, in the composer. */
export function ModePicker() {
  const mode = chosenMode.value;
  const items = MODES.map((name) => ({
    key: name,
    current: name === mode,
    label: <Ticked on={name === mode}>{t(`mode.${name}`)}<small>{t(`mode.${name}_text`)}</small></Ticked>,
    run: () => void chooseFor({ mode: name }),
  }));
  const button = <><Icon name={ICONS[mode]} /><span>{t(`mode.${mode}`)}</span></>;
  return <Popup button={button} name={t("mode.picker", { mode: t(`mode.${mode}`) })} kind={`chip mode-${mode}`} menu={t("mode.title")} items={items} />;
}

/** The project of the conversation, with its folder. */
export function ProjectPicker() {
  const all = projects.value;
  const chosen = all.find(({ id }) => id === chosenProject.value);
  const item = (id: string, name: string, folder: string) => ({
    key: id,
    current: id === (chosen?.id ?? ""),
    label: <Ticked on={id === (chosen?.id ?? "")}>{name}{folder !== "" && <small>{folder}</small>}</Ticked>,
    run: () => void chooseFor({ project: id }),
  });
  const items = [item("", t("project.none"), ""), ...all.map((project) => item(project.id, visible(project.name), visible(project.folder)))];
  const more = { key: "+", label: <span class="other">{t("project.manage")}</span>, run: () => go("/settings/projects") };
  const name = chosen === undefined ? t("project.none") : visible(chosen.name);
  const button = <><Icon name="folder" /><span>{name}</span></>;
  return <Popup button={button} name={t("project.picker", { project: name })} kind="chip" menu={t("project.title")} items={[...items, more]} />;
}
