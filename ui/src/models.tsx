// The connected models: choosing one, and the picker in the header and the composer.
import type { ComponentChildren } from "preact";
import { call } from "./api";
import { chooseFor, chosenModel } from "./choices";
import { confirm } from "./dialogs";
import { Icon } from "./icon";
import { urlOf } from "./paths";
import { Popup, Ticked } from "./popup";
import { favourites } from "./preferences";
import { attempt, follow, go, modelName, setup, toast } from "./state";
import { t, type TextKey } from "./text";
import type { Model, Setup } from "./types";
import { visible } from "./words";

/** The practice model replaces a good model: ask first, unless no other model is in use. */
export function askBeforePractice(run: () => void, text: TextKey = "model.practice_text"): void {
  const { model } = setup.value ?? { model: null };
  if (model === null || model.kind === "practice") return run();
  confirm(t("model.practice_ask"), t(text, { model: modelName(model) }), t("model.use_practice"), run);
}

export function choose(model: Model): void {
  const use = () => void attempt(async () => {
    setup.value = await call<Setup>("POST", "/api/setup/choose", { label: model.label });
    toast(t("model.now", { model: modelName(setup.value.model) }));
  });
  if (model.kind === "practice") askBeforePractice(use);
  else use();
}

export const isActive = (model: Model): boolean => model.label === setup.value?.model?.label;
const FILTER_FROM = 9;

/** The models, favourites first. */
export const sorted = (models: Model[]): Model[] => {
  const isFavourite = ({ label }: Model) => favourites.value.includes(label);
  return [...models.filter(isFavourite), ...models.filter((model) => !isFavourite(model))];
};

/** Choose the model of the open conversation. */
export function chooseHere(model: Model): void {
  const use = () => void chooseFor({ model: model.label });
  if (model.kind === "practice") askBeforePractice(use, "model.practice_here");
  else use();
}

/** The model of the open conversation. It opens a menu of all connected models. */
export function ModelPicker() {
  const found = setup.value;
  const chosen = chosenModel.value;
  const name = found === null ? "" : visible(modelName(chosen));
  if (found === null || found.models.length === 0)
    return <a class="chip" href={urlOf("/settings/models")} onClick={follow} title={t("model.active_hint")}>{name || t("settings.title")}</a>;
  const items = sorted(found.models).map((model) => ({
    key: model.label,
    words: `${modelName(model)} ${model.url ?? ""}`,
    current: model.label === chosen?.label,
    label: <ModelItem model={model} chosen={model.label === chosen?.label} />,
    run: () => { if (model.label !== chosen?.label) chooseHere(model); },
  }));
  const more = { key: "+", current: false, label: <span class="other">{t("model.connect_other")}</span>, run: () => go("/settings/models") };
  const button = <><span>{name || t("model.choose")}</span> <Icon name="open" /></>;
  return <Popup button={button} name={t("model.picker", { model: name || t("model.none") })} kind="chip model" menu={t("model.menu")} filter={items.length >= FILTER_FROM ? t("settings.filter") : undefined} items={[...items, more]} />;
}

/** A menu that answers again with another model. It sets the model of the conversation. */
export function RetryWith({ button, kind, retry }: { button: ComponentChildren; kind: string; retry: (label: string) => void }) {
  const others = (setup.value?.models ?? []).filter((model) => model.label !== chosenModel.value?.label);
  if (others.length === 0) return null;
  const items = others.map((model) => ({ key: model.label, label: <ModelItem model={model} chosen={false} />, run: () => retry(model.label) }));
  return <Popup button={button} name={t("model.retry_with")} kind={kind} menu={t("model.retry_with")} items={items} />;
}

const ModelItem = ({ model, chosen }: { model: Model; chosen: boolean }) => <Ticked on={chosen}>
  {visible(modelName(model))} {favourites.value.includes(model.label) && <Icon name="star" label={t("model.favourite")} />}
  {model.url ? <small>{visible(model.url)}</small> : null}
</Ticked>;
