// Settings: a list of sections, and one section at a time. Where there is little room, the list comes first.
import type { FunctionComponent } from "preact";
import { useEffect, useRef } from "preact/hooks";
import { Icon } from "../icon";
import { urlOf } from "../paths";
import { follow, isOwner, route, setup } from "../state";
import { t, tx } from "../text";
import { visible } from "../words";
import { Appearance, Notifications } from "./appearance";
import { ChatApps } from "./chatapps";
import { Data } from "./data";
import { Devices } from "./devices";
import { Models } from "./models";
import { Permissions } from "./rules";
import { Projects } from "./projects";
import { Schedules } from "./schedules";
import { SECTIONS, type SectionName } from "./sections";
import { Tools } from "./mcp";
import { Usage } from "./usage";
import { Setting, useSettings } from "./values";

/** The version, the licences and where to read on. */
function About() {
  const terminal = setup.value?.terminal || "tenax";
  return <dl class="pairs">
    <dt>{t("about.version")}</dt><dd>{visible(setup.value?.version ?? "")}</dd>
    <dt>{t("about.licence")}</dt>
    <dd>{tx("about.licence_text", { packages: <a href={urlOf("/third-party.txt")} target="_blank" rel="noreferrer">{t("settings.licences")}</a> })}</dd>
    {isOwner.value && <>
      <dt>{t("about.terminal")}</dt>
      <dd>{tx("about.terminal_text", { help: <code>{`${terminal} --help`}</code>, doctor: <code>{`${terminal} doctor`}</code> })}</dd>
    </>}
  </dl>;
}

/** The review after an answer, and the memory providers. The memories have their own screen. */
function MemorySettings() {
  return <>
    <p><a class="button" href={urlOf("/memory")} onClick={follow}><Icon name="memory" />{t("memory.open")}</a></p>
    {isOwner.value && <><Setting name="memory.review" /><Setting name="context_files" /><Setting name="memory.providers" /></>}
  </>;
}

const BODIES: Record<SectionName, FunctionComponent> = {
  models: Models, permissions: Permissions, tools: Tools, chats: ChatApps, schedules: Schedules, memory: MemorySettings, projects: Projects, appearance: Appearance,
  notifications: Notifications, usage: Usage, data: Data, devices: Devices, about: About,
};

export function SettingsScreen() {
  useSettings();
  const title = useRef<HTMLHeadingElement>(null);
  const { section } = route.value;
  const shown = SECTIONS.filter(({ owner }) => owner !== true || isOwner.value);
  const open = shown.find(({ name }) => name === section) ?? shown[0]!;
  const Body = BODIES[open.name];
  const known = section !== "" && open.name === section;
  useEffect(() => {
    // The link that was clicked may be hidden now: the keyboard goes on at the title.
    const at = document.activeElement;
    if (at === null || at === document.body || at.getClientRects().length === 0) title.current?.focus();
  }, [section]);
  if (setup.value === null) return <main class="setup"><p class="status">{t("common.loading")}</p></main>;
  return <main class="settings" data-open={known}>
    <nav class="sections" aria-label={t("settings.title")}>
      <h1>{t("settings.title")}</h1>
      <ul>
        {shown.map(({ name, icon }) => <li key={name}>
          <a href={urlOf(`/settings/${name}`)} onClick={follow} aria-current={open.name === name ? "page" : undefined}>
            <Icon name={icon} />{t(`section.${name}`)}
          </a>
        </li>)}
      </ul>
    </nav>
    <div class="section" key={open.name}>
      <div class="page">
        <a class="button quiet back" href={urlOf("/settings")} onClick={follow}><Icon name="back" />{t("settings.title")}</a>
        <h1 tabIndex={-1} ref={title}>{t(`section.${open.name}`)}</h1>
        <p class="lead">{t(`section.${open.name}.about`)}</p>
        <Body />
      </div>
    </div>
  </main>;
}
