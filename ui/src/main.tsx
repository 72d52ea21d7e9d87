// The entry point of the page.
import { render } from "preact";
import { App } from "./app";
import { startAttention } from "./attention";
import { startPreferences } from "./preferences";
import { installWorker, removeServiceWorkers } from "./install";
import { inside, urlOf } from "./paths";
import { SignInScreen } from "./signin";
import { go, start } from "./state";
import { startLanguage } from "./text";

startPreferences(); // before the first paint
const place = document.getElementById("page")!;

function open(): void {
  start();
  startAttention();
  render(<App />, place);
  installWorker();
}

function begin(): void {
  if (inside(location.pathname) !== "/link") return open();
  const asked = new URLSearchParams(location.hash.slice(1));
  history.replaceState(null, "", urlOf("/link")); // keep the code out of the history
  // A second link in this tab changes only the fragment, so the browser does not reload by itself.
  addEventListener("hashchange", () => inside(location.pathname) === "/link" && location.reload());
  const done = (path: string) => {
    go(path, "replace");
    open();
  };
  render(<SignInScreen code={asked.get("code") ?? ""} to={asked.get("to")} done={done} />, place);
}

void Promise.all([removeServiceWorkers(inside(location.pathname) === "/link"), startLanguage()]).then(([found]) => (found ? location.reload() : begin()));

// The font loads when the page stands: it delays nothing.
addEventListener("load", () => setTimeout(() => void import("@fontsource-variable/inter/wght.css")));
