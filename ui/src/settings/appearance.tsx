// Appearance and notifications: preferences of the person.
import { useState } from "preact/hooks";
import { chosenLanguage, density, DENSITIES, notifies, prefer, sendKey, SENDS, size, SIZES, theme, THEMES } from "../preferences";
import { languages, t } from "../text";
import { Choice, Select, Switch } from "./fields";

/** The name of a language in the language itself. */
const languageName = (name: string): string => new Intl.DisplayNames([name], { type: "language" }).of(name) ?? name;

export function Appearance() {
  return <>
    <Choice label={t("look.theme")} value={theme.value} options={THEMES.map((name) => [name, t(`look.theme.${name}`)])} save={(value) => prefer("theme", value)} />
    <Choice label={t("look.size")} value={size.value} options={SIZES.map((name) => [name, t(`look.size.${name}`)])} save={(value) => prefer("size", value)} />
    <Choice label={t("look.density")} value={density.value} options={DENSITIES.map((name) => [name, t(`look.density.${name}`)])} save={(value) => prefer("density", value)} />
    <Choice label={t("look.send")} value={sendKey.value} options={SENDS.map((name) => [name, t(`look.send.${name}`)])} save={(value) => prefer("send", value)} />
    <Select label={t("look.language")} value={chosenLanguage.value}
      options={[["", t("look.language.browser")], ...languages.map((name) => [name, languageName(name)] as const)]}
      save={(value) => prefer("language", value || null)} done="" />
  </>;
}

type Permission = NotificationPermission | "unsupported";
const permission = (): Permission => (typeof Notification === "undefined" ? "unsupported" : Notification.permission);

export function Notifications() {
  const [allowed, setAllowed] = useState<Permission>(permission);
  const change = async (on: boolean) => {
    // The browser asks only right after a click, so ask before anything else.
    if (on && permission() === "default") setAllowed(await Notification.requestPermission());
    await prefer("notifications", on);
  };
  return <>
    <Switch label={t("notify.switch")} hint={t("notify.about")} on={notifies.value} save={change} done="" />
    {notifies.value && allowed !== "granted" && <p class="status">{t(`notify.${allowed}`)}</p>}
    {notifies.value && allowed === "default" &&
      <p><button type="button" onClick={() => void Notification.requestPermission().then(setAllowed)}>{t("notify.ask")}</button></p>}
  </>;
}
