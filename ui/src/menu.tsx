// The menu of a conversation, in its header and in its row of the list.
import { call, conversationPath } from "./api";
import { type Command, conversationCommands } from "./commands";
import { useLoaded } from "./hooks";
import { Icon } from "./icon";
import { Popup, type PopupItem } from "./popup";
import { current, running, titleOf, type View } from "./state";
import { t } from "./text";
import type { Listed, Usage } from "./types";
import { visible } from "./words";

/** A command as the item of a menu. */
export const menuItem = ({ key, label, icon, bad, run, more }: Command): PopupItem => ({
  key,
  label: <><Icon name={icon} /><span dir="auto">{label}</span>{more !== undefined && <span class="after"><Icon name="forward" /></span>}</>,
  run,
  kind: bad ? "bad" : "",
  ...(more && { more: more.map(menuItem) }),
});

export function Menu({ view }: { view: View }) {
  const items = () => conversationCommands(view.id, current.value).map(menuItem);
  return <Popup button={<Icon name="more" />} name={t("menu.button")} kind="quiet icon" menu={t("menu.title")} items={items} foot={<UsageLine view={view} />} />;
}

/** The menu of a row. `select` begins to select several rows. */
export function RowMenu({ conversation, select }: { conversation: Listed; select: () => void }) {
  const name = t("list.more", { title: visible(titleOf(conversation)) });
  const items = () => {
    const commands = conversationCommands(conversation.id, conversation, "row");
    commands.splice(-1, 0, { key: "select", label: t("selection.start"), icon: "select", run: select });
    return commands.map(menuItem);
  };
  return <Popup button={<Icon name="more" />} name={name} kind="quiet icon more" menu={name} items={items} />;
}

/** The usage of a conversation. It is loaded again after every answer, and not while one is written unless `always` is set. */
export function useUsage(view: View, always = false): Usage | null {
  const load = () => (running.value && !always ? null : call<{ usage?: Usage }>("GET", conversationPath(view.id)));
  return useLoaded(load, [view, running.value]).found?.usage ?? null;
}

function UsageLine({ view }: { view: View }) {
  const usage = useUsage(view, true);
  if (usage === null) return null;
  const tokens = { in: usage.tokens_in, out: usage.tokens_out };
  const cost = usage.cost === null ? "" : `$${usage.cost.toFixed(usage.cost < 0.1 ? 4 : 2)}`;
  const percent = usage.context_used !== null && usage.context ? `${Math.round((100 * usage.context_used) / usage.context)} %` : "";
  return <p class="meta">
    {cost === "" ? t("usage.tokens", tokens) : t("usage.tokens_cost", { ...tokens, cost })} {percent !== "" && t("usage.context", { percent })}
  </p>;
}
