// The icons of Lucide that the page uses.
import {
  Archive, ArrowUp, Bell, Brain, ChartColumn, Check, ChevronDown, ChevronLeft, ChevronRight, ChevronUp, CircleAlert, CircleHelp, Clock, Command, Copy,
  Database, Download, Ellipsis, Eraser, ExternalLink, Eye, File, FilePen, FileSearch, FolderOpen, FolderSearch, FoldVertical, GitFork, Globe,
  Hourglass, Info, ListTodo, Lock, MessageSquare, MessageSquarePlus, MessagesSquare, MonitorSmartphone, Palette, PanelLeft, Paperclip, Pencil, Pin, Plug, Printer,
  RefreshCw, Search, Send, Settings, Share, ShieldCheck, Sparkles, Square, SquareCheck, SquareTerminal, Star, Trash2, Undo2, Users, Volume2, Webhook, Wrench, X,
} from "lucide";
import { h } from "preact";

const ICONS = {
  agent: Users, alert: CircleAlert, archive: Archive, ask: CircleHelp, attach: Paperclip, back: ChevronLeft, bell: Bell, branch: GitFork,
  chat: MessageSquare, chats: MessagesSquare, clear: Eraser, chart: ChartColumn, clock: Clock, close: X, commands: Command, compact: FoldVertical, copy: Copy,
  data: Database, delete: Trash2, devices: MonitorSmartphone, done: Check, download: Download, edit: Pencil, export: Share, external: ExternalLink,
  file: File, folder: FolderOpen, forward: ChevronRight, find: FolderSearch, info: Info, lock: Lock, look: Palette, memory: Brain, model: Sparkles,
  more: Ellipsis, new: MessageSquarePlus, open: ChevronDown, panel: PanelLeft, pin: Pin, plug: Plug, print: Printer, read: Volume2, retry: RefreshCw,
  run: SquareTerminal, search: Search, seen: Eye, select: SquareCheck, send: ArrowUp, settings: Settings, shield: ShieldCheck, star: Star,
  stop: Square, telegram: Send, temporary: Hourglass, todo: ListTodo, tool: Wrench, undo: Undo2, up: ChevronUp, view: FileSearch, web: Globe, webhook: Webhook, change: FilePen,
};

export type IconName = keyof typeof ICONS;

/** An icon. With a label it has a meaning of its own; without one it is decoration. */
export function Icon({ name, label }: { name: IconName; label?: string }) {
  const meaning = label === undefined ? { "aria-hidden": true } : { role: "img" as const, "aria-label": label };
  return (
    <svg class="icon" data-icon={name} {...meaning} viewBox="0 0 24 24" width="16" height="16" fill="none" stroke="currentColor" stroke-width="2" stroke-linecap="round" stroke-linejoin="round">
      {ICONS[name].map(([tag, attributes], n) => h(tag, { ...attributes, key: n }))}
    </svg>
  );
}

interface IconButtonProps {
  icon: IconName;
  name: string; // the name for screen readers and the tooltip
  disabled?: boolean;
  kind?: string; // further classes
  act: () => void;
}

export function IconButton({ icon, name, disabled, kind = "", act }: IconButtonProps) {
  return (
    <button type="button" class={`quiet icon ${kind}`} aria-label={name} title={name} disabled={disabled} onClick={act}><Icon name={icon} /></button>
  );
}
