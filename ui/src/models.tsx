// The connected models: a picker in the header, and the list in Settings.
import { call } from "./api";
import { dialog } from "./dialogs";
import { Icon } from "./icon";
import { Popup } from "./popup";
import { attempt, follow, go, modelName, setup, toast } from "./state";
import type { Model, Setup } from "./types";
import { visible } from "./words";

/** The practice model replaces a good model for all conversations: ask first, unless no other model is in use. */
export function askBeforePractice(run: () => void): void {
  const { model } = setup.value ?? { model: null };
  if (model === null || model.kind === "practice") return run();
  dialog.value = {
    kind: "confirm",
    title: "Use the practice model?",
    text: `The practice model is a toy: it makes things up. It will answer in all conversations instead of ${modelName(model)}.`,
    label: "Use the practice model",
    run,
  };
}

function choose(model: Model): void {
  const use = () =>
    void attempt(async () => {
      setup.value = await call<Setup>("POST", "/api/setup/choose", { label: model.label });
      toast(`Now using ${modelName(setup.value.model)}.`);
    });
  if (model.kind === "practice") askBeforePractice(use);
  else use();
}

const isActive = (model: Model): boolean => model.label === setup.value?.model?.label;

/** The active model in the header. It opens a menu of all connected models. */
export function ModelPicker() {
  const found = setup.value;
  const name = found === null ? "" : visible(modelName(found.model));
  if (found === null || found.models.length === 0)
    return (
      <a class="chip" href="/setup" onClick={follow} title="Active model">
        {name || "Settings"}
      </a>
    );
  const items = found.models.map((model) => ({
    key: model.label,
    current: isActive(model),
    label: <ModelItem model={model} />,
    run: () => {
      if (!isActive(model)) choose(model);
    },
  }));
  const more = { key: "+", current: false, label: <span class="other">Connect another model…</span>, run: () => go("/setup") };
  const button = (
    <>
      <span>{name || "Choose a model"}</span> <Icon name="open" />
    </>
  );
  return <Popup button={button} name={`Model: ${name || "none"}`} kind="chip" menu="Models" items={[...items, more]} />;
}

const ModelItem = ({ model }: { model: Model }) => (
  <>
    <span class="tick">{isActive(model) && <Icon name="done" />}</span>
    <span>
      {visible(modelName(model))}
      {model.url ? <small>{visible(model.url)}</small> : null}
    </span>
  </>
);

/** All connected models, in Settings. */
export function ModelList() {
  const models = setup.value?.models ?? [];
  if (models.length < 2) return null;
  return (
    <ul class="models" aria-label="Connected models">
      {models.map((model) => (
        <li key={model.label}>
          <span>
            <b>{visible(modelName(model))}</b>
            {model.url ? <small>{visible(model.url)}</small> : null}
          </span>
          {isActive(model) ? (
            <span class="tag">Active</span>
          ) : (
            <button type="button" aria-label={`Use ${modelName(model)}`} onClick={() => choose(model)}>
              Use
            </button>
          )}
        </li>
      ))}
    </ul>
  );
}
