// Models: the connected ones with their parameters, connecting another, and the order in which they replace each other.
import { useState } from "preact/hooks";
import { call } from "../api";
import { confirm } from "../dialogs";
import { Icon, IconButton } from "../icon";
import { choose, isActive, sorted } from "../models";
import { favourites, prefer } from "../preferences";
import { Offers } from "../setup";
import { attempt, isOwner, loadSetup, modelName, setup, toast } from "../state";
import { t, tx } from "../text";
import type { Model } from "../types";
import { visible } from "../words";
import { Locked, Refusal, useSave } from "./fields";
import { answer, type Answer, change, PARAMETERS, Setting, valueOf } from "./values";

function remove(model: Model): void {
  const work = () => attempt(async () => {
    answer.value = await call<Answer>("DELETE", `/api/models/${encodeURIComponent(model.label)}`);
    await loadSetup();
    toast(t("model.removed"));
  });
  confirm(t("model.remove_ask", { model: visible(modelName(model)) }), t("model.remove_text"), t("common.remove"), work);
}

export function Models() {
  const { model } = setup.value!;
  return <>
    {model !== null && <p>
      {tx("settings.active", { model: <strong>{visible(modelName(model))}</strong> })}
      {model.url ? <span class="meta"> ({visible(model.url)})</span> : null}
    </p>}
    {isOwner.value && <ModelList />}
    {(isOwner.value || model === null) && <h2>{t("settings.more_models")}</h2>}
    <Offers />
    {isOwner.value && <Fallback />}
  </>;
}

function ModelList() {
  const [editing, setEditing] = useState("");
  const { models } = setup.value!;
  const star = (model: Model) => {
    const others = favourites.value.filter((label) => label !== model.label);
    void attempt(() => prefer("favourites", favourites.value.includes(model.label) ? others : [...others, model.label]));
  };
  return <ul class="cards" aria-label={t("model.list")}>
    {sorted(models).map((model) => {
      const name = visible(modelName(model));
      const favourite = favourites.value.includes(model.label);
      return <li key={model.label}>
        <div class="head">
          <span><b>{name}</b>{model.url ? <small>{visible(model.url)}</small> : null}</span>
          {isActive(model) ? <span class="tag">{t("model.active")}</span> : <button type="button" aria-label={t("model.use_named", { model: name })} onClick={() => choose(model)}>{t("model.use")}</button>}
          <button type="button" class="quiet icon star" aria-pressed={favourite} aria-label={t("model.favourite_named", { model: name })} title={t("model.favourite")} onClick={() => star(model)}>
            <Icon name="star" />
          </button>
          {valueOf(`models.${model.label}.context`) !== undefined && <IconButton icon="edit" name={t("model.edit", { model: name })} act={() => setEditing(editing === model.label ? "" : model.label)} />}
          {!isActive(model) && <IconButton icon="delete" name={t("common.remove_named", { name })} act={() => remove(model)} />}
        </div>
        {editing === model.label && <Parameters model={model} />}
      </li>;
    })}
  </ul>;
}

/** What is sent to the model with every request, its context length and its price. */
const Parameters = ({ model }: { model: Model }) =>
  <div class="parameters" role="group" aria-label={t("model.parameters", { model: visible(modelName(model)) })}>
    {PARAMETERS.map((name) => <Setting key={name} name={`model.${name}`} of={`models.${model.label}.${name}`} />)}
  </div>;

/** The models that are tried in this order if the active one fails. */
function Fallback() {
  const found = valueOf("fallback");
  const saving = useSave();
  const { models } = setup.value!;
  if (found === undefined || models.length < 2) return null;
  const order = Array.isArray(found.value) ? (found.value as string[]) : [];
  const nameOf = (label: string): string => visible(modelName(models.find((model) => model.label === label) ?? null) || label);
  const put = (next: string[]) => void saving.save(() => change("fallback", next));
  const rest = models.filter(({ label }) => !order.includes(label));
  return <section aria-label={t("model.fallback")}>
    <h2>{t("model.fallback")} <Locked by={found.locked ?? ""} /></h2>
    <p class="meta">{t("model.fallback_about")}</p>
    <ol class="cards">
      {order.map((label, n) => <li key={label} class="head">
        <span>{nameOf(label)}</span>
        <IconButton icon="up" name={t("model.earlier", { model: nameOf(label) })} disabled={n === 0} act={() => put(order.toSpliced(n - 1, 2, label, order[n - 1]!))} />
        <IconButton icon="close" name={t("common.remove_named", { name: nameOf(label) })} act={() => put(order.toSpliced(n, 1))} />
      </li>)}
    </ol>
    {rest.length > 0 &&
      <select aria-label={t("model.fallback_add")} value="" onChange={(event) => event.currentTarget.value !== "" && put([...order, event.currentTarget.value])}>
        <option value="">{t("model.fallback_add")}</option>
        {rest.map(({ label }) => <option key={label} value={label}>{nameOf(label)}</option>)}
      </select>}
    <Refusal text={saving.error} />
  </section>;
}
