// The icons of Lucide that the page uses.
import { Check, ChevronDown, ChevronLeft, ChevronRight, Copy, Eye, GitFork, Hourglass, Pencil, RefreshCw, Volume2 } from "lucide";
import { h } from "preact";

const ICONS = {
  back: ChevronLeft,
  forward: ChevronRight,
  copy: Copy,
  done: Check,
  seen: Eye,
  branch: GitFork,
  edit: Pencil,
  open: ChevronDown,
  retry: RefreshCw,
  temporary: Hourglass,
  read: Volume2,
};

export type IconName = keyof typeof ICONS;

/** An icon. With a label it has a meaning of its own; without one it is decoration. */
export function Icon({ name, label }: { name: IconName; label?: string }) {
  const meaning = label === undefined ? { "aria-hidden": true } : { role: "img" as const, "aria-label": label };
  return (
    <svg class="icon" {...meaning} viewBox="0 0 24 24" width="16" height="16" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round">
      {ICONS[name].map(([tag, attributes], n) => h(tag, { ...attributes, key: n }))}
    </svg>
  );
}

/** A button with an icon. Its name is for screen readers and for the tooltip. */
export function IconButton({ icon, name, disabled, act }: { icon: IconName; name: string; disabled?: boolean; act: () => void }) {
  return (
    <button type="button" class="quiet icon" aria-label={name} title={name} disabled={disabled} onClick={act}>
      <Icon name={icon} />
    </button>
  );
}
