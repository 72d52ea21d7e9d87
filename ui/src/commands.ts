// Everything that a person can order the page to do. The menu, the palette and the composer show commands from this one table.
import { fork, retryRow } from "./actions";
import { call, callText, conversationPath } from "./api";
import { appIcon, appName, type ChatPlace, type Chats, chatsOf, putChats } from "./chats";
import { chooseFor, chosenMode, chosenModel } from "./choices";
import { confirm, dialog } from "./dialogs";
import type { IconName } from "./icon";
import { openTemporary } from "./list";
import { chooseHere } from "./models";
import { MODES, notifies, prefer, projects, theme, THEMES } from "./preferences";
import { printConversation } from "./printing";
import { copyText } from "./prose";
import { SECTIONS } from "./settings/sections";
import { download } from "./signed";
import { attempt, current, dropListed, finding, go, isOwner, modelName, outlined, palette, panel, putListed, running, setup, titleOf, toast, view, type View } from "./state";
import { t, type TextKey } from "./text";
import type { Listed } from "./types";
import { visible } from "./words";

export interface Command {
  key: string;
  label: string;
  icon: IconName;
  run: () => void;
  slash?: string; // the name after "/" in the composer
  bad?: boolean; // whether the command destroys something
  more?: Command[]; // The commands that a menu shows after this one was chosen. The palette and the composer run this one instead.
}

const command = (key: TextKey, icon: IconName, run: () => unknown, slash?: string): Command => ({
  key,
  label: t(key),
  icon,
  run: () => void run(),
  ...(slash !== undefined && { slash }),
});

export const showKeys = (): void => void (dialog.value = { kind: "keys", title: t("keys.title"), text: t("keys.list") });
export const stop = (id: string): Promise<unknown> => attempt(() => call("POST", conversationPath(id, "/stop")));

/** Change entries of the list. Returns true if all were changed. */
export const patchListed = (ids: string[], fields: Partial<Listed>): Promise<boolean | undefined> => attempt(async () => {
  for (const id of ids) putListed(await call<Listed>("PATCH", conversationPath(id), fields));
  return true;
});

/** Archive conversations, or take them out of the archive, and offer to undo it. */
export async function archiveAll(ids: string[], archived: boolean): Promise<void> {
  const undo = { label: t("common.undo"), run: () => void patchListed(ids, { archived: !archived }) };
  if (await patchListed(ids, { archived })) toast(t(archived ? "conversation.archived" : "conversation.unarchived", { n: ids.length }), undo);
}

/** Ask the person, and delete conversations. */
export function askRemove(ids: string[], done: () => void = () => undefined): void {
  const remove = async () => {
    for (const id of ids) {
      await call("DELETE", conversationPath(id));
      dropListed(id);
      if (view.value?.id === id) go("/");
    }
    toast(t("conversation.deleted", { n: ids.length }));
    done();
  };
  const n = ids.length;
  confirm(t("conversation.delete_ask", { n }), t("conversation.delete_text", { n }), t("menu.delete"), () => attempt(remove));
}

/** One command for each project, and one for none. `now` is the project of the conversations. */
export function moveCommands(ids: string[], now?: string, done: () => void = () => undefined): Command[] {
  const move = async (project: string) => { if (await patchListed(ids, { project })) done(); };
  const to = projects.value.filter(({ id }) => id !== now);
  return [
    ...to.map(({ id, name }): Command => ({ key: `move-${id}`, label: visible(name), icon: "folder", run: () => void move(id) })),
    ...(now === "" || projects.value.length === 0 ? [] : [command("menu.no_project", "close", () => move(""))]),
  ];
}

/** Connect a conversation to a chat, or disconnect it. */
const changeRoute = (id: string, { account, platform, chat, thread }: ChatPlace, connects: boolean) => attempt(async () => {
  const path = conversationPath(id, "/routes");
  const place = { account, chat, thread };
  putChats(id, await (connects ? call<Chats>("POST", path, place) : call<Chats>("DELETE", `${path}?${new URLSearchParams(place)}`)));
  toast(t(connects ? "chat.connected_now" : "chat.disconnected", { app: appName(platform) }));
});

function chatCommand(id: string, place: ChatPlace, connects: boolean, label: string): Command {
  const change = () => void changeRoute(id, place, connects);
  const chat = visible(place.title);
  const ask = () => confirm(t("chat.group_ask", { chat }), t("chat.group_text"), t("chat.continue", { app: appName(place.platform) }), change);
  const key = `chat-${place.account}-${place.chat}-${place.thread}`;
  return { key, label, icon: appIcon(place.platform), run: connects && place.group ? ask : change };
}

/** The chats in which the conversation can continue, and those to which it is connected. */
const chatGroups = (id: string) => [
  { connects: true, places: chatsOf(id)?.available ?? [], key: "chat.continue", named: "chat.continue_in" },
  { connects: false, places: chatsOf(id)?.connected ?? [], key: "chat.disconnect", named: "chat.disconnect_in" },
] as const;

/** What a menu shows for the chats: one command alone, or one command with a page of chats. */
const chatCommands = (id: string): Command[] => chatGroups(id).flatMap(({ connects, places, key }): Command[] => {
  const [first] = places;
  if (first === undefined) return [];
  const label = t(key, { app: appName(first.platform) });
  if (places.length === 1) return [chatCommand(id, first, connects, label)];
  const more = places.map((place) => chatCommand(id, place, connects, visible(place.title)));
  return [{ key, label, icon: appIcon(first.platform), run: () => (palette.value = label), more }];
});

/** The chats that the menu shows on a page of their own. */
const deepChatCommands = (id: string): Command[] => chatGroups(id).filter(({ places }) => places.length > 1).flatMap(({ connects, places, named }) =>
  places.map((place) => chatCommand(id, place, connects, t(named, { app: appName(place.platform), chat: visible(place.title) }))));

/** What can be done with a conversation from its row in the list and from its menu, in their order. */
export function conversationCommands(id: string, listed: Listed | undefined, place: "menu" | "row" = "menu"): Command[] {
  const path = (rest = "") => conversationPath(id, rest);
  const patch = (fields: Partial<Listed>) => patchListed([id], fields);
  const restore = (of: number) => ({ label: t("common.undo"), run: () => void attempt(() => call("POST", path("/restore"), { of })) });
  const takeBack = (what: "undo" | "clear", said: string) => attempt(async () => {
    const { seq } = await call<{ seq: number }>("POST", path(`/${what}`), what === "undo" ? {} : undefined);
    toast(said, restore(seq));
  });
  const rename = () => (dialog.value = {
    kind: "ask",
    title: t("menu.rename"),
    label: t("conversation.title"),
    value: listed?.title ?? titleOf(listed),
    run: (title) => void patch({ title: title === "" ? null : title }),
  });
  const move = moveCommands([id], listed?.project ?? "");
  const here: Command[] = [
    command("find.title", "search", () => (finding.value = true), "find"),
    command("files.title", "folder", () => (panel.value = true), "files"),
    ...(view.value?.long.value === true ? [command("outline.title", "todo", () => (outlined.value = true), "outline")] : []),
    command("menu.fork", "branch", () => fork(id), "fork"),
    command("menu.undo", "undo", () => takeBack("undo", t("conversation.message_removed")), "undo"),
    command("menu.clear", "clear", () => takeBack("clear", t("conversation.cleared")), "clear"),
    command("menu.compact", "compact", () => attempt(async () => toast((await call<{ said: string }>("POST", path("/compact"))).said)), "compact"),
  ];
  return [
    command("menu.rename", "edit", rename, "rename"),
    command(listed?.pinned ? "menu.unpin" : "menu.pin", "pin", () => patch({ pinned: listed?.pinned !== true })),
    command(listed?.archived ? "menu.unarchive" : "menu.archive", "archive", () => archiveAll([id], listed?.archived !== true), "archive"),
    ...(move.length > 0 ? [{ ...command("menu.move", "folder", () => (palette.value = t("palette.move", { name: "" })), "move"), more: move }] : []),
    ...(place === "menu" ? [...here, ...chatCommands(id)] : []),
    { ...command("menu.export", "export", () => (palette.value = `${t("menu.export")} `), "export"), more: exportCommands(id) },
    { ...command("menu.delete", "delete", () => askRemove([id])), bad: true },
  ];
}

/** What can be done with the conversation that is open: its menu, and what its buttons do. */
export function openCommands(open: View | null = view.value): Command[] {
  if (open === null || open.gone.value) return [];
  const answer = open.answer.value;
  const retry = () => answer !== null && retryRow(open, open.row(answer).value);
  return [
    ...(running.value ? [command("composer.stop", "stop", () => stop(open.id), "stop")] : []),
    ...(answer !== null && !running.value ? [command("common.retry", "retry", retry, "retry")] : []),
    ...conversationCommands(open.id, current.value),
  ];
}

export const FORMATS = ["markdown", "html", "json", "openai", "tenax"] as const;

const exportPath = (id: string, format: string) => conversationPath(id, `/export?format=${format}`);

/** One command for each format. Several conversations are one file. */
export const exportSeveral = (ids: string[], done: () => void): Command[] => FORMATS.map((format) => {
  const query = new URLSearchParams([["format", format], ...ids.map((id) => ["id", id])]);
  const path = ids.length === 1 ? exportPath(ids[0]!, format) : `/api/export?${query}`;
  return command(`export.${format}`, "export", async () => { if ((await download(path)) === true) done(); });
});

/** The ways to export a conversation. Only the open one can be printed. */
function exportCommands(id: string): Command[] {
  const copy = () => attempt(async () => {
    const copied = await copyText(await callText("GET", exportPath(id, "markdown")));
    toast(t(copied ? "export.copied" : "page.no_copying"), undefined, !copied);
  });
  return [
    ...FORMATS.map((format) => command(`export.${format}`, "export", () => download(exportPath(id, format)))),
    command("export.copy", "copy", copy),
    ...(view.value?.id === id ? [command("export.print", "print", printConversation)] : []),
  ];
}

/** The commands for the open conversation that the palette finds besides those of its menu. */
export function deepCommands(): Command[] {
  const open = view.value;
  if (open === null || open.gone.value) return [];
  const move = moveCommands([open.id], current.value?.project ?? "");
  return [...exportCommands(open.id), ...deepChatCommands(open.id), ...move.map((one) => ({ ...one, label: t("palette.move", { name: one.label }) }))];
}

/** What can be done from everywhere. */
export const pageCommands = (): Command[] => [
  command("conversation.new", "new", () => go("/"), "new"),
  command("list.new_temporary", "temporary", openTemporary, "temporary"),
  command("keys.title", "ask", showKeys, "help"),
];

/** One command for each connected model. */
export const modelCommands = (): Command[] =>
  (setup.value?.models ?? []).filter((model) => model.label !== chosenModel.value?.label)
    .map((model) => ({ key: `model-${model.label}`, label: t("model.picker", { model: visible(modelName(model)) }), icon: "star", run: () => chooseHere(model) }));

/** One command for each other mode of approvals. */
export const modeCommands = (): Command[] =>
  MODES.filter((mode) => mode !== chosenMode.value).map((mode) => ({ key: `mode-${mode}`, label: t("mode.picker", { mode: t(`mode.${mode}`) }), icon: "shield", run: () => void chooseFor({ mode }) }));

/** One command for each other theme. */
export const themeCommands = (): Command[] =>
  THEMES.filter((name) => name !== theme.value).map((name) => command(`palette.theme_${name}`, "seen", () => attempt(() => prefer("theme", name))));

/** Turn notifications on or off. The browser asks for its permission only right after a click or a key. */
const switchNotifications = () => attempt(async () => {
  const on = !notifies.value;
  const allowed = !on || (typeof Notification !== "undefined" && (await Notification.requestPermission()) === "granted");
  if (!allowed) return toast(t("notify.refused"), undefined, true);
  await prefer("notifications", on);
  toast(t(on ? "notify.now_on" : "notify.now_off"));
});

export const settingsCommands = (): Command[] => [
  command("memory.title", "memory", () => go("/memory"), "memory"),
  command(notifies.value ? "notify.off" : "notify.on", "bell", switchNotifications),
  ...SECTIONS.filter(({ owner }) => owner !== true || isOwner.value).map(({ name, icon }) => {
    const label = t("palette.section", { name: t(`section.${name}`) });
    return { key: `settings-${name}`, label, icon, run: () => go(`/settings/${name}`) };
  }),
];

/** The commands that the composer offers after "/". */
export function slashCommands(): Command[] {
  const model = command("model.choose", "star", () => (palette.value = t("model.picker", { model: "" })), "model");
  const mode = command("mode.title", "shield", () => (palette.value = t("mode.picker", { mode: "" })), "mode");
  const all = [...pageCommands(), ...openCommands(), ...(modelCommands().length > 0 ? [model] : []), mode, ...settingsCommands()];
  return all.filter((one) => one.slash !== undefined);
}
