// Permissions: the mode of new conversations, and rules: what tools may always do, and what they never may. List, add and remove them.
import { useState } from "preact/hooks";
import { Field, Radios } from "../form";
import { defaultMode, MODES, prefer } from "../preferences";
import { isOwner } from "../state";
import { t, tx } from "../text";
import type { Rule } from "../types";
import { visible } from "../words";
import { AddForm, RemoveButton, useEntries } from "./entries";
import { Choice } from "./fields";
import { Setting } from "./values";

const VERDICTS = ["deny", "allow"] as const;
const said = (rule: Rule): string => visible(`${rule.tool} ${rule.touches}`);

export function Permissions() {
  const modes = MODES.map((mode) => [mode, t(`mode.${mode}`), t(`mode.${mode}_text`)] as const);
  return <>
    <Choice label={t("mode.default")} hint={t("mode.default_about")} value={defaultMode.value} options={modes} save={(mode) => prefer("mode", mode)} done={t("settings.saved")} />
    {isOwner.value && <><Setting name="resume" /><Rules /></>}
  </>;
}

function Rules() {
  const { found: rules, change } = useEntries<Rule>("/api/rules", "rules");
  const [verdict, setVerdict] = useState<Rule["verdict"]>("deny");
  const [tool, setTool] = useState("");
  const [touches, setTouches] = useState("");
  const remove = (rule: Rule) => change("DELETE", `?${new URLSearchParams({ ...rule })}`, t("rules.removed"));
  const add = async () => {
    const rule: Rule = { verdict, tool: tool.trim(), touches: touches.trim() || "*" };
    if (!(await change("POST", "", t(`rules.added_${verdict}`, { rule: said(rule) }), rule))) return;
    setTool("");
    setTouches("");
  };
  if (rules === null) return null;
  return <section class="facts rules" aria-label={t("rules.title")}>
    <h2>{t("rules.title")} <span class="meta">{t("rules.about")}</span></h2>
    {rules.length === 0 ? <p class="status">{t("rules.none")}</p> : <ul>
      {rules.map((rule) => <li key={`${rule.verdict} ${said(rule)}`} class="about" data-verdict={rule.verdict}>
        <span class="meta">{tx(`rules.${rule.verdict}`, { rule: <code>{said(rule)}</code> })}</span>
        <RemoveButton label={t(`rules.remove_${rule.verdict}`, { rule: said(rule) })} act={() => remove(rule)} next=".rules li button, .rules input" />
      </li>)}
    </ul>}
    <AddForm title={t("rules.add")} add={add}>
      <Radios legend={t("rules.verdict")} name="verdict" options={VERDICTS.map((one) => [one, t(`rules.verdict_${one}`)])} value={verdict} choose={setVerdict} />
      <Field label={t("rules.tool")} hint={t("rules.tool_hint")} required maxLength={2000} value={tool} put={setTool} />
      <Field label={t("rules.target")} hint={t("rules.target_hint")} maxLength={2000} value={touches} put={setTouches} />
    </AddForm>
  </section>;
}
