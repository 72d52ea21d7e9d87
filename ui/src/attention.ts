// What tells the person that a conversation needs them while they look elsewhere: the title of the tab, its icon and notifications.
import { effect } from "@preact/signals";
import mark from "./mark.svg?raw";
import { notifies } from "./preferences";
import { type Attention, attentionOf, current, go, listed, listReady, pathOf, route, titleOf, view } from "./state";
import { t, type TextKey } from "./text";
import type { Listed } from "./types";
import { visible } from "./words";

/** The colours of base.css for a light page: an icon cannot read them, and a tab may be light or dark. */
const DOTS = { asks: "#e0ad3c", failed: "#b0261d", running: "#1d5fd1" } as const;
const SAID: Partial<Record<Attention, TextKey>> = { asks: "notify.asks", failed: "notify.failed", unread: "notify.done" };
/** The attention that the open conversation needs by its rows: the list does not update sub-agents. */
const openAsks = (): boolean => view.value?.asks.value === true && (current.value === undefined || attentionOf(current.value) !== "asks");

function showTitle(): void {
  const { screen, conversation } = route.value;
  const name = { setup: t("settings.title"), settings: t("settings.title"), memory: t("memory.title"), conversation: conversation === null ? "" : visible(titleOf(current.value)) }[screen];
  const waiting = listed.value.filter((one) => attentionOf(one) === "asks").length + (openAsks() ? 1 : 0);
  document.title = `${waiting > 0 ? `(${waiting}) ` : ""}${name === "" ? "" : `${name.slice(0, 80)} · `}Tenax`;
}

function showIcon(plain: string, link: HTMLLinkElement): void {
  const found = new Set(listed.value.map(attentionOf));
  if (openAsks()) found.add("asks");
  const kind = (["asks", "failed", "running"] as const).find((one) => found.has(one));
  const dot = kind && `<circle cx="24" cy="8" r="8" fill="#fff"/><circle cx="24" cy="8" r="6.4" fill="${DOTS[kind]}"/></svg>`;
  const next = dot === undefined ? plain : `data:image/svg+xml,${encodeURIComponent(mark.replace("</svg>", dot))}`;
  if (link.getAttribute("href") !== next) link.href = next;
}

/** Show a notification, if the person and the browser allow it and nobody looks at this page. A click opens the conversation. */
function notify(conversation: Listed, key: TextKey): void {
  if (!notifies.peek() || !document.hidden || typeof Notification === "undefined" || Notification.permission !== "granted") return;
  const title = visible(titleOf(conversation));
  const path = pathOf(conversation.id);
  const how = { body: t(key), tag: `${conversation.id}-${key}`, data: path }; // with the same tag, several tabs show it once
  try {
    const shown = new Notification(title, how);
    shown.onclick = () => {
      window.focus();
      go(path);
      shown.close();
    };
  } catch {
    // On Android only a service worker shows notifications.
    void navigator.serviceWorker?.ready.then((worker) => worker.showNotification(title, how)).catch(() => undefined);
  }
}

export function startAttention(): void {
  const link = document.querySelector<HTMLLinkElement>('link[rel="icon"]')!;
  const plain = link.getAttribute("href")!;
  let before: Map<string, Attention> | null = null;
  effect(showTitle);
  effect(() => showIcon(plain, link));
  effect(() => {
    if (!listReady.value) return;
    const now = new Map(listed.value.map((one) => [one.id, attentionOf(one)]));
    for (const one of before === null ? [] : listed.value) {
      const is = now.get(one.id)!;
      const was = before!.get(one.id);
      // A conversation that was not in the list is only another page of it, unless it waits.
      if (is !== was && SAID[is] !== undefined && (was !== undefined || is === "asks")) notify(one, SAID[is]);
    }
    before = now;
  });
  navigator.serviceWorker?.addEventListener("message", ({ data }) => {
    if (typeof data === "object" && data !== null && typeof data.open === "string" && data.open.startsWith("/c/")) go(data.open);
  });
}
