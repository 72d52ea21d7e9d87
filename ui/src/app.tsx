// The frame of the page: the current screen, the banner, toasts and global keyboard shortcuts.
import type { ComponentChildren } from "preact";
import { useEffect } from "preact/hooks";
import { Composer, fill } from "./composer";
import { dialog, Dialogs } from "./dialogs";
import { focusSearch, Sidebar } from "./list";
import { MemoryScreen } from "./memorypage";
import { Menu } from "./menu";
import { ModelPicker } from "./models";
import { UnsentRow } from "./row";
import { SetupScreen } from "./setup";
import { LinkCommand } from "./signin";
import {
  banner,
  current,
  denied,
  deniedWhy,
  dismiss,
  drawer,
  fetchListed,
  follow,
  lacks,
  listReady,
  loadSetup,
  pathOf,
  route,
  setup,
  titleOf,
  toasts,
  view,
  wasPulled,
} from "./state";
import { Transcript, unsentOf } from "./transcript";
import { lacksWords, visible } from "./words";

function keys(event: KeyboardEvent): void {
  if ((event.ctrlKey || event.metaKey) && event.key.toLowerCase() === "k") {
    event.preventDefault();
    focusSearch();
  } else if (event.key === "Escape" && drawer.value) drawer.value = false;
  else if (event.key === "?" && !isTyping(event.target)) dialog.value = { kind: "text", title: "Keyboard shortcuts", text: SHORTCUTS };
}

const isTyping = (target: EventTarget | null): boolean => target instanceof HTMLElement && target.closest("input, textarea, [contenteditable]") !== null;

const SHORTCUTS = `Ctrl+K or Cmd+K   search
Enter             send, or queue while an answer is being written
Shift+Enter       new line
Esc               stop the answer
Up                edit your last message (in an empty composer)
1, 2, 3           answer an approval: allow once, always, deny
?                 this list`;

export function App() {
  useEffect(() => {
    window.addEventListener("keydown", keys);
    return () => window.removeEventListener("keydown", keys);
  }, []);
  if (denied.value) return <NeedsLink />;
  const { screen, conversation } = route.value;
  const first = screen !== "memory" && conversation === null && setup.value !== null && setup.value.model === null;
  return (
    <div class={drawer.value ? "app open" : "app"}>
      <Banner />
      <Sidebar />
      {drawer.value && <div class="shade" onClick={() => (drawer.value = false)} />}
      <div class="content">
        {screen === "conversation" && !first ? <Conversation /> : <WithDrawer>{screen === "memory" ? <MemoryScreen /> : <SetupScreen />}</WithDrawer>}
      </div>
      <Toasts />
      {dialog.value !== null && <Dialogs />}
    </div>
  );
}

const DrawerButton = () => (
  <button
    type="button"
    class="drawer"
    aria-label="Conversations"
    aria-expanded={drawer.value}
    aria-controls="list"
    onClick={() => {
      drawer.value = !drawer.value;
    }}
  >
    <svg viewBox="0 0 20 20" width="20" height="20" aria-hidden="true">
      <path d="M3 5h14M3 10h14M3 15h9" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" />
    </svg>
  </button>
);

const WithDrawer = ({ children }: { children: ComponentChildren }) => (
  <>
    <div class="top only-phone">
      <DrawerButton />
    </div>
    {children}
  </>
);

function Banner() {
  const state = banner.value;
  const said = {
    live: "",
    lost: wasPulled.value ? "The server was killed. Your work is saved." : "Reconnecting… Your work is saved.",
    back: "Reconnected.",
  }[state];
  const put = state === "lost" ? null : lacks.value;
  return (
    <div class="banner" role="status" data-connection={put === null ? state : "incomplete"}>
      {put === null ? said : lacksWords(put)}
    </div>
  );
}

function Toasts() {
  return (
    <div class="toasts" role="status">
      {toasts.value.map((toast) => (
        <div key={toast.id} class={toast.bad ? "toast bad" : "toast"}>
          <span>{toast.text}</span>
          {toast.action !== undefined && (
            <button
              type="button"
              onClick={() => {
                dismiss(toast.id);
                toast.action?.run();
              }}
            >
              {toast.action.label}
            </button>
          )}
          <button type="button" class="quiet" aria-label="Dismiss" onClick={() => dismiss(toast.id)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}

function NeedsLink() {
  return (
    <main class="setup">
      <div class="page">
        <h1>Sign in</h1>
        {deniedWhy.value !== "" && <p>{deniedWhy.value}</p>}
        <LinkCommand />
        <p>
          <button type="button" onClick={() => void loadSetup()}>
            Reload
          </button>
        </p>
      </div>
    </main>
  );
}

function Conversation() {
  const open = view.value;
  const id = route.value.conversation;
  useEffect(() => {
    if (id !== null && open?.gone.value !== true && listReady.value && current.value === undefined) void fetchListed(id);
  }, [id, listReady.value, current.value === undefined]);
  const title = id === null ? "New conversation" : visible(titleOf(current.value));
  return (
    <main class="conversation">
      <header class="top">
        <DrawerButton />
        <h1 dir="auto" title={title}>
          {title}
        </h1>
        {current.value?.temporary === true && <span class="temporary">Temporary: nothing is added to memory</span>}
        {current.value?.parent && (
          <a class="temporary" href={pathOf(current.value.parent)} onClick={follow}>
            Sub-agent: back to the main conversation
          </a>
        )}
        <ModelPicker />
        {open !== null && !open.gone.value && <Menu view={open} />}
      </header>
      <Stage />
      {open?.gone.value !== true && <Composer view={open} conversation={id} />}
    </main>
  );
}

function Stage() {
  const open = view.value;
  if (open === null) return <Empty />;
  if (open.gone.value) return <Gone />;
  if (!open.ready.value) return <Loading />;
  if (open.order.value.length === 0 && unsentOf(open.id, open).length === 0) return <Empty />;
  return <Transcript key={open.id} view={open} />;
}

const Loading = () => (
  <div class="stage">
    <p class="status center">Loading…</p>
  </div>
);

function Gone() {
  return (
    <div class="stage">
      <div class="center">
        <p>This conversation was deleted or does not exist.</p>
        <a class="button main" href="/" onClick={follow}>
          New conversation
        </a>
      </div>
    </div>
  );
}

const TRY = [
  "Look through the working folder and tell me what is in it.",
  "Explain with a small example how a hash chain shows that nothing was changed.",
  "Help me plan tomorrow. Ask me three questions first.",
];

function Empty() {
  const unsent = unsentOf(route.value.conversation, view.value);
  if (unsent.length > 0)
    return (
      <div class="stage">
        <div class="transcript" tabIndex={0} role="region" aria-label="Transcript">
          <ol class="rows column">
            {unsent.map((message) => (
              <UnsentRow key={message.key} message={message} />
            ))}
          </ol>
        </div>
      </div>
    );
  return (
    <div class="stage">
      <div class="center">
        <h2>What can I help with?</h2>
        <ul class="tries">
          {TRY.map((example) => (
            <li key={example}>
              <button type="button" onClick={() => fill(example)}>
                {example}
              </button>
            </li>
          ))}
        </ul>
      </div>
    </div>
  );
}
