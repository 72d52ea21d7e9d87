// The entry point of the page.
import { render } from "preact";
import { App } from "./app";
import { SignInScreen } from "./signin";
import { go, start } from "./state";

const place = document.getElementById("page")!;

function open(): void {
  start();
  render(<App />, place);
}

function begin(): void {
  if (location.pathname !== "/link") return open();
  const asked = new URLSearchParams(location.hash.slice(1));
  history.replaceState(null, "", "/link"); // keep the code out of the history
  // A second link in this tab changes only the fragment, so the browser does not reload by itself.
  addEventListener("hashchange", () => location.pathname === "/link" && location.reload());
  const done = (path: string) => {
    go(path, "replace");
    open();
  };
  render(<SignInScreen code={asked.get("code") ?? ""} to={asked.get("to")} done={done} />, place);
}

/** Remove service workers. Tenax has none; another program on this port may have left one, which would see the code and the key. */
async function removeServiceWorkers(): Promise<boolean> {
  if (!("serviceWorker" in navigator)) return false;
  try {
    const found = await navigator.serviceWorker.getRegistrations();
    await Promise.all(found.map((worker) => worker.unregister()));
    return found.length > 0;
  } catch {
    return false; // service workers are disabled
  }
}

void removeServiceWorkers().then((found) => (found ? location.reload() : begin()));
