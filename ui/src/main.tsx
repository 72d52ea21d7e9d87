// Where the page begins.
import { render } from "preact";
import { App } from "./app";
import { start } from "./state";

start();
render(<App />, document.getElementById("page")!);
