// Projects: a name, a folder, instructions and a default model for several conversations.
import { useState } from "preact/hooks";
import { call, newKey } from "../api";
import { confirm } from "../dialogs";
import { Field, prevented } from "../form";
import { IconButton } from "../icon";
import { projects } from "../preferences";
import { attempt, modelName, setup, toast } from "../state";
import { t } from "../text";
import type { Project } from "../types";
import { visible } from "../words";
import { Refusal, useSave } from "./fields";

type Draft = Omit<Project, "id">;
const EMPTY: Draft = { name: "", folder: "", instructions: "", model: "" };
const projectPath = (project: Project): string => `/api/projects/${encodeURIComponent(project.id)}`;

function remove(project: Project): void {
  const work = () => attempt(async () => {
    await call("DELETE", projectPath(project));
    projects.value = projects.value.filter(({ id }) => id !== project.id);
    toast(t("projects.removed"));
  });
  confirm(t("projects.remove_ask", { name: visible(project.name) }), t("projects.remove_text"), t("common.remove"), work);
}

export function Projects() {
  const [editing, setEditing] = useState<string | null>(null);
  const [key, setKey] = useState(newKey);
  const change = async (project: Project, draft: Draft) => {
    const next = await call<Project>("PATCH", projectPath(project), draft);
    projects.value = projects.value.map((one) => (one.id === next.id ? next : one));
    setEditing(null);
  };
  const add = async (draft: Draft) => {
    const next = await call<Project>("POST", "/api/projects", draft, { "Idempotency-Key": key });
    projects.value = [...projects.value.filter(({ id }) => id !== next.id), next];
    setKey(newKey());
    setEditing(null);
  };
  return <>
    {projects.value.length === 0 && editing === null && <p class="status">{t("projects.none")}</p>}
    <ul class="cards" aria-label={t("section.projects")}>
      {projects.value.map((project) => <li key={project.id}>
        {editing === project.id ? (
          <ProjectForm name={t("projects.edit", { name: visible(project.name) })} start={project} save={(draft) => change(project, draft)} close={() => setEditing(null)} />
        ) : <div class="head">
          <span>
            <b dir="auto">{visible(project.name)}</b>
            {project.folder !== "" && <small>{visible(project.folder)}</small>}
            {project.model !== "" && <small>{visible(project.model)}</small>}
            {project.instructions !== "" && <small dir="auto">{visible(project.instructions).slice(0, 200)}</small>}
          </span>
          <IconButton icon="edit" name={t("projects.edit", { name: visible(project.name) })} act={() => setEditing(project.id)} />
          <IconButton icon="delete" name={t("common.remove_named", { name: visible(project.name) })} act={() => remove(project)} />
        </div>}
      </li>)}
    </ul>
    {editing === "" ? <ProjectForm name={t("projects.add")} start={EMPTY} save={add} close={() => setEditing(null)} /> : <button type="button" onClick={() => setEditing("")}>{t("projects.add")}</button>}
  </>;
}

interface FormProps { name: string; start: Draft; save: (draft: Draft) => Promise<void>; close: () => void }

function ProjectForm({ name, start, save, close }: FormProps) {
  const [draft, setDraft] = useState<Draft>({ name: start.name, folder: start.folder, instructions: start.instructions, model: start.model });
  const saving = useSave();
  const put = (changed: Partial<Draft>) => setDraft({ ...draft, ...changed });
  const models = setup.value?.models ?? [];
  return <form class="connect" aria-label={name} onSubmit={prevented(() => saving.save(() => save(draft)))}>
    <Field label={t("projects.name")} required autofocus maxLength={100} value={draft.name} put={(text) => put({ name: text })} />
    <Field label={t("projects.folder")} hint={t("projects.folder_hint")} maxLength={4096} value={draft.folder} put={(text) => put({ folder: text.trim() })} spellcheck={false} />
    <Field label={t("projects.instructions")} hint={t("projects.instructions_hint")} lines={4} maxLength={10_000} value={draft.instructions} put={(text) => put({ instructions: text })} />
    {models.length > 0 && <label>
      {t("projects.model")}
      <select value={draft.model} onChange={(event) => put({ model: event.currentTarget.value })}>
        <option value="">{t("projects.model_default")}</option>
        {models.map((model) =>
          <option key={model.label} value={model.label} selected={model.label === draft.model}>{visible(modelName(model))}</option>)}
      </select>
    </label>}
    <Refusal text={saving.error} />
    <div class="choices">
      <button type="submit" class="main" disabled={saving.busy}>{t("common.save")}</button>
      <button type="button" class="quiet" onClick={close}>{t("common.cancel")}</button>
    </div>
  </form>;
}
