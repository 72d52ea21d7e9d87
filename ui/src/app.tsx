// The frame of the page: the current screen, the banner, toasts and global keyboard shortcuts.
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { appIcon, appName, chatsOf, isChatApp, useChats } from "./chats";
import { showKeys } from "./commands";
import { Composer, fill } from "./composer";
import { dialog, Dialogs } from "./dialogs";
import { Icon, IconButton, type IconName } from "./icon";
import { lazy } from "./lazy";
import { focusSearch, Sidebar } from "./list";
import { Menu } from "./menu";
import { ModelPicker } from "./models";
import { urlOf } from "./paths";
import { UnsentRow } from "./row";
import { isSelecting, leaveSelection } from "./selection";
import { WelcomeScreen } from "./setup";
import { BareScreen, LinkCommand } from "./signin";
import {
  banner, connection, current, denied, deniedWhy, dismiss, drawer, fetchListed, finding, fold, folded, follow, go, lacks, listReady, loadSetup, outlined,
  panel, palette, pathOf, route, setup, titleOf, toasts, view, wasPulled, type View,
} from "./state";
import { t, type TextKey } from "./text";
import { Transcript, unsentOf } from "./transcript";
import { lacksWords, visible } from "./words";

function keys(event: KeyboardEvent): void {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    palette.value = palette.value === null ? "" : null;
  } else if ((event.ctrlKey || event.metaKey) && event.shiftKey && event.key.toLowerCase() === "f" && view.value !== null) {
    event.preventDefault();
    if (finding.value) document.querySelector<HTMLInputElement>(".find input")?.focus();
    finding.value = true;
  } else if (event.key === "Escape" && isSelecting.value && !isTyping(event.target)) leaveSelection();
  else if (event.key === "Escape" && drawer.value) drawer.value = false;
  else if (isTyping(event.target) || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]") !== null) return;
  else if (event.key === "?") showKeys();
  else if (event.key === "/") {
    event.preventDefault();
    fold(false);
    focusSearch();
  }
}

const LazyPalette = lazy(() => import("./palette").then(({ Palette }) => Palette), () => (palette.value = null));
const isTyping = (target: EventTarget | null): boolean => target instanceof HTMLElement && target.closest("input, textarea, [contenteditable]") !== null;
const Memory = lazy(async () => (await import("./memorypage")).MemoryScreen);
const Settings = lazy(async () => (await import("./settings/page")).SettingsScreen);

export function App() {
  useEffect(() => {
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  }, []);
  if (denied.value) return <NeedsLink />;
  const { screen, conversation } = route.value;
  const first = (screen === "setup" || (screen === "conversation" && conversation === null)) && setup.value !== null && setup.value.model === null;
  return <div class={`app${drawer.value ? " open" : ""}${folded.value ? " folded" : ""}`}>
    <Banner />
    <Sidebar />
    {drawer.value && <div class="shade" onClick={() => (drawer.value = false)} />}
    <div class="content">
      {screen === "conversation" && !first ? <WithPanel /> : <WithDrawer>{first ? <WelcomeScreen /> : screen === "memory" ? <Memory /> : <Settings />}</WithDrawer>}
    </div>
    <Toasts />
    {dialog.value !== null && <Dialogs />}
    {palette.value !== null && <LazyPalette />}
  </div>;
}

const WIDE = matchMedia("(min-width: 761px)");

/** Shows the sidebar: on a phone as a drawer, on a wide screen if it is folded. */
const DrawerButton = () =>
  <button type="button" class="quiet icon drawer" aria-label={t("list.title")} aria-expanded={drawer.value} aria-controls="list"
    onClick={() => {
      if (WIDE.matches) fold(false);
      else drawer.value = !drawer.value;
    }}
  >
    <Icon name="panel" />
  </button>;

const WithDrawer = ({ children }: { children: ComponentChildren }) => <><div class="top only-phone"><DrawerButton /></div>{children}</>;

function Banner() {
  const state = banner.value;
  const said = { live: "", lost: t(wasPulled.value ? "banner.killed" : "banner.lost"), back: t("banner.back") }[state];
  const put = state === "lost" ? null : lacks.value;
  return <div class="banner" role="status" data-connection={put === null ? state : "incomplete"}>{put === null ? said : lacksWords(put)}</div>;
}

function Toasts() {
  return <div class="toasts" role="status">
    {toasts.value.map((toast) => <div key={toast.id} class={toast.bad ? "toast bad" : "toast"}>
      <span>{toast.text}</span>
      {toast.action !== undefined && <button type="button"
        onClick={() => {
          dismiss(toast.id);
          toast.action?.run();
        }}
      >
        {toast.action.label}
      </button>}
      <IconButton icon="close" name={t("common.dismiss")} act={() => dismiss(toast.id)} />
    </div>)}
  </div>;
}

function NeedsLink() {
  return <BareScreen title={t("signin.title")}>
    {deniedWhy.value !== "" && <p>{deniedWhy.value}</p>}
    <LinkCommand />
    <p><button type="button" onClick={() => void loadSetup()}>{t("common.reload")}</button></p>
  </BareScreen>;
}

const FilesPanel = lazy(() => import("./files").then((files) => files.FilesPanel), () => (panel.value = false));

/** The conversation, and beside it the panel with its files. */
function WithPanel() {
  const open = view.value;
  if (!panel.value || open === null || open.gone.value) return <Conversation />;
  return <div class="with-panel"><Conversation /><FilesPanel view={open} /></div>;
}

function Conversation() {
  const open = view.value;
  const id = route.value.conversation;
  useEffect(() => {
    if (id !== null && open?.gone.value !== true && listReady.value && current.value === undefined) void fetchListed(id);
  }, [id, listReady.value, current.value === undefined]);
  useChats(open);
  const title = id === null ? t("conversation.new") : open?.gone.value === true ? "" : visible(titleOf(current.value));
  const fresh = open === null ? unsentOf(null, null).length === 0 : !open.gone.value && open.ready.value && isEmpty(open);
  return <main class={fresh ? "conversation fresh" : "conversation"}>
    <header class="top">
      <DrawerButton />
      <h1 dir="auto" title={title}>{title}</h1>
      {current.value?.temporary === true && <span class="temporary">{t("header.temporary")}</span>}
      {current.value?.parent && <a class="temporary" href={urlOf(pathOf(current.value.parent))} onClick={follow}>{t("header.subagent")}</a>}
      {id !== null && <ChatBadge id={id} />}
      <ModelPicker />
      {open?.long.value === true && <IconButton icon="todo" name={t("outline.title")} kind="only-wide" act={() => (outlined.value = true)} />}
      {id !== null && <IconButton icon="new" name={t("conversation.new")} kind="only-phone" act={() => go("/")} />}
      {open !== null && !open.gone.value && <IconButton icon="folder" name={t("files.title")} kind="only-wide" act={() => (panel.value = !panel.value)} />}
      {open !== null && !open.gone.value && <Menu view={open} />}
    </header>
    <Stage />
    {open?.gone.value !== true && <Composer view={open} conversation={id} />}
    {fresh && <Examples />}
  </main>;
}

/** The chat app to which the conversation is connected, or in which it began. */
function ChatBadge({ id }: { id: string }) {
  const places = chatsOf(id)?.connected ?? [];
  const source = current.value?.source;
  const platform = places[0]?.platform ?? (isChatApp(source) ? source : undefined);
  if (platform === undefined) return null;
  const app = appName(platform);
  const about = places.length === 0 ? t("chat.from", { app }) : t("chat.badge", { app, chats: places.map(({ title }) => visible(title)).join(", ") });
  return <span class="badge chat-app" role="img" aria-label={about} title={about} data-connected={places.length > 0}>
    <Icon name={appIcon(platform)} /><span class="only-wide">{visible(app)}</span>
  </span>;
}

const isEmpty = (open: View): boolean => open.order.value.length === 0 && unsentOf(open.id, open).length === 0;

function Stage() {
  const open = view.value;
  if (open === null) return <Empty />;
  if (open.gone.value) return <Gone />;
  if (!open.ready.value) return connection.value === "lost" && unsentOf(open.id, open).length > 0 ? <Empty /> : <Loading />;
  if (isEmpty(open)) return <Empty />;
  return <Transcript key={open.id} view={open} />;
}

const Loading = () =>
  <div class="stage"><p class="status center">{t(connection.value === "lost" ? "common.reconnecting" : "common.loading")}</p></div>;

function Gone() {
  return <div class="stage">
    <div class="center"><p>{t("conversation.gone")}</p><a class="button main" href={urlOf("/")} onClick={follow}>{t("conversation.new")}</a></div>
  </div>;
}

const EXAMPLES: [IconName, TextKey][] = [
  ["folder", "example.folder"],
  ["run", "example.script"],
  ["web", "example.page"],
  ["clock", "example.schedule"],
];

const Examples = () => <ul class="tries">
  {EXAMPLES.map(([icon, key]) => <li key={key}><button type="button" onClick={() => fill(t(key))}><Icon name={icon} />{t(key)}</button></li>)}
</ul>;

function Empty() {
  const unsent = unsentOf(route.value.conversation, view.value);
  if (unsent.length > 0) return <div class="stage">
    <div class="transcript" tabIndex={0} role="region" aria-label={t("transcript.title")}>
      <ol class="rows column">{unsent.map((message) => <UnsentRow key={message.key} message={message} />)}</ol>
    </div>
  </div>;
  return <div class="stage"><div class="center"><h2>{t("conversation.greeting")}</h2></div></div>;
}
