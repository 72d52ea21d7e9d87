// The icons of Lucide that the page uses. An icon is decoration; the button around it carries the name.
import { Check, ChevronDown, ChevronLeft, ChevronRight, Copy, Eye, GitFork, Pencil, RefreshCw, Volume2 } from "lucide";
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
  read: Volume2,
};

export type IconName = keyof typeof ICONS;

export function Icon({ name }: { name: IconName }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" width="16" height="16" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round" aria-hidden="true">
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
