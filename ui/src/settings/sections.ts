// The sections of the settings, for the page of the settings and for the palette.
import type { IconName } from "../icon";

export type SectionName = "models" | "permissions" | "tools" | "chats" | "schedules" | "memory" | "projects" | "appearance" | "notifications" | "usage" | "data" | "devices" | "about";

/** The sections in display order. Some are only for the owner of the installation. */
export const SECTIONS: readonly { name: SectionName; icon: IconName; owner?: true }[] = [
  { name: "models", icon: "model" },
  { name: "permissions", icon: "shield" },
  { name: "tools", icon: "plug", owner: true },
  { name: "chats", icon: "chats", owner: true },
  { name: "schedules", icon: "clock" },
  { name: "memory", icon: "memory" },
  { name: "projects", icon: "folder" },
  { name: "appearance", icon: "look" },
  { name: "notifications", icon: "bell" },
  { name: "usage", icon: "chart" },
  { name: "data", icon: "data" },
  { name: "devices", icon: "devices" },
  { name: "about", icon: "info" },
];
