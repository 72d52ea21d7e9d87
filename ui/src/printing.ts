// Printing: the loaded rows of the open conversation, all of them and unfolded.
import { signal } from "@preact/signals";
import { options } from "preact";
import { view } from "./state";

/** Whether all rows are rendered, also those far from the screen. */
export const printing = signal(false);
const frame = () => new Promise((done) => requestAnimationFrame(done));

/** Render a change of signals now, not after this task: the browser takes its picture of the page at the end of the event. */
function renderNow(change: () => void): void {
  const before = options.debounceRendering;
  options.debounceRendering = (render) => render();
  change();
  if (before === undefined) delete options.debounceRendering;
  else options.debounceRendering = before;
}

/** Print the open conversation. The rows are rendered first, so that their pictures and code are ready. */
export async function printConversation(): Promise<void> {
  printing.value = true;
  await frame();
  await frame();
  window.print();
}

function prepare(): () => void {
  const open = view.value;
  const unfolded = open?.unfolded.value;
  renderNow(() => {
    printing.value = true;
    if (open) open.unfolded.value = new Set(open.folds.value.keys());
  });
  const closed = [...document.querySelectorAll<HTMLDetailsElement>(".transcript details:not([open])")];
  for (const details of closed) details.open = true;
  return () => {
    printing.value = false;
    for (const details of closed) details.open = false;
    if (open && unfolded) open.unfolded.value = unfolded;
  };
}

let restore = () => undefined as void;
addEventListener("beforeprint", () => (restore = prepare()));
addEventListener("afterprint", () => restore());
