// Where the page begins.
import { render } from "preact";
import { App } from "./app";
import { SignInScreen } from "./signin";
import { go, start } from "./state";

const place = document.getElementById("page")!;

function open(): void {
  start();
  render(<App />, place);
}

if (location.pathname === "/link") {
  const asked = new URLSearchParams(location.hash.slice(1));
  history.replaceState(null, "", "/link"); // the code is nobody else's business
  const done = (path: string) => {
    go(path, "replace");
    open();
  };
  render(<SignInScreen code={asked.get("code") ?? ""} to={asked.get("to")} done={done} />, place);
} else open();
