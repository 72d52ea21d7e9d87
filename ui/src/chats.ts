// The chats of chat apps, such as Telegram: those to which the open conversation is connected, and those in which it can continue.
import { signal } from "@preact/signals";
import { call, conversationPath } from "./api";
import { useLook } from "./hooks";
import type { IconName } from "./icon";
import { connection, running, setup, view, type View } from "./state";
import { t, type TextKey } from "./text";

export interface ChatPlace { account: string; platform: string; chat: string; thread: string; title: string; group: boolean }
export interface Chats { connected: ChatPlace[]; available: ChatPlace[] }

/** The chat apps, by the name of the platform, which is also the source of a conversation that began there. */
const APPS: Record<string, { icon: IconName; name: TextKey }> = {
  telegram: { icon: "telegram", name: "app.telegram" },
  discord: { icon: "chats", name: "app.discord" },
  webhook: { icon: "webhook", name: "app.webhook" },
};
export const appIcon = (platform: string): IconName => APPS[platform]?.icon ?? "chats";
export const appName = (platform: string): string => (APPS[platform] === undefined ? platform : t(APPS[platform].name));
export const isChatApp = (source: string | undefined): boolean => source !== undefined && Object.hasOwn(APPS, source);

const loaded = signal<(Chats & { conversation: string }) | null>(null);
/** The chats of a conversation, once they are loaded. Only those of the open conversation are. */
export const chatsOf = (id: string): Chats | null => (loaded.value?.conversation === id ? loaded.value : null);
export const putChats = (conversation: string, found: Chats): void => void (loaded.value = { conversation, ...found });

/** Load the chats of the open conversation now, and again after every answer, as long as Tenax has an account in a chat app. */
export function useChats(open: View | null): void {
  const ready = open !== null && !open.gone.value && open.ready.value && connection.value === "live" && setup.value?.chat_apps === true;
  const look = async () => {
    if (!ready || running.value) return;
    const found = await call<Chats>("GET", conversationPath(open.id, "/routes")).catch(() => null);
    if (found !== null && view.value?.id === open.id) putChats(open.id, found);
  };
  useLook(look, [open?.id, ready, running.value]);
}
