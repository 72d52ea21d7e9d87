// Content of strangers in sandboxed frames: diagrams, previews of HTML and SVG, pictures of other sites. A frame has an opaque origin and its own
// policy (web/frames.py). The page sends it the content and believes nothing that it says but a height and an error.
import { foreignPicture } from "./markdown";
import { urlOf } from "./paths";
import { t } from "./text";

const HEIGHT_MAX = 1_500;
/** Mermaid draws a picture with an error for longer texts. */
const DIAGRAM_MAX = 20_000;
const ERROR_MAX = 200;
const SECONDS_MAX = 20;
interface Opened { text: string; report: (error: string | null) => void }
const frames = new Map<HTMLIFrameElement, Opened>();

const isDark = (): boolean => {
  const { theme } = document.documentElement.dataset;
  return theme === "dark" || (theme !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
};
// The target has an opaque origin, which no target origin matches; nothing else can be loaded into this frame.
const send = (frame: HTMLIFrameElement, { text }: Opened): void => frame.contentWindow?.postMessage({ text, dark: isDark() }, "*");

addEventListener("message", ({ source, origin, data }: MessageEvent<unknown>) => {
  for (const [frame, opened] of frames) {
    if (!frame.isConnected) frames.delete(frame);
    else if (frame.contentWindow === source && origin === "null" && typeof data === "object" && data !== null) {
      const { height, error } = data as { height?: unknown; error?: unknown };
      if (typeof height === "number" && height > 0) {
        frame.style.height = `${Math.min(Math.ceil(height), HEIGHT_MAX)}px`;
        opened.report(null);
      } else if (typeof error === "string") opened.report(error.slice(0, ERROR_MAX));
    }
  }
});

function redraw(): void { for (const [frame, opened] of frames) if (frame.isConnected) send(frame, opened); }
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
new MutationObserver(redraw).observe(document.documentElement, { attributeFilter: ["data-theme"] });

function openFrame(path: string, title: string, text: string, report: (error: string | null) => void): HTMLIFrameElement {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts");
  frame.setAttribute("credentialless", ""); // where it is known: no cookies for other sites
  frame.title = title;
  frame.loading = "lazy";
  frame.src = urlOf(path);
  let timer: ReturnType<typeof setTimeout> | undefined;
  const opened: Opened = { text, report: (error) => (clearTimeout(timer), report(error)) };
  frame.addEventListener("load", () => {
    timer = setTimeout(() => report(t("code.too_long")), SECONDS_MAX * 1000);
    send(frame, opened);
  });
  frames.set(frame, opened);
  return frame;
}

/** Draw the finished Mermaid diagrams below an element, once each. An error leaves the code, with one line. */
export function drawDiagrams(within: Element): void {
  for (const code of within.querySelectorAll(".code:not(.drawn) > pre > code.language-mermaid")) {
    const [box, text] = [code.closest(".code")!, code.textContent ?? ""];
    box.classList.add("drawn");
    if (text.trim() === "") continue;
    const fail = (error: string) => {
      const reason = error.split("\n")[0]!.replace(/[\s:]+$/, "");
      box.append(Object.assign(document.createElement("p"), { className: "status", textContent: t("code.no_diagram", { reason }) }));
    };
    if (text.length > DIAGRAM_MAX) {
      fail(t("code.too_large", { n: DIAGRAM_MAX }));
      continue;
    }
    const toggle = Object.assign(document.createElement("button"), { type: "button", className: "diagram", textContent: t("code.code") });
    const frame = openFrame("/frames/diagram", t("code.diagram"), text, (error) => {
      box.classList.remove("drawing");
      if (error === null) return;
      frame.remove();
      toggle.remove();
      box.classList.remove("as-diagram");
      fail(error);
    });
    box.classList.add("as-diagram", "drawing");
    box.querySelector(".bar .wrap")?.before(toggle);
    box.querySelector(".bar")!.after(frame);
  }
}

export function toggleDiagram(box: Element, button: Element): void {
  button.textContent = t(box.classList.toggle("as-diagram") ? "code.code" : "code.diagram");
}

/** Show HTML or SVG without its scripts and without network, or the code again. */
export function togglePreview(box: Element, button: Element): void {
  const isOpen = button.getAttribute("aria-pressed") === "true";
  button.setAttribute("aria-pressed", String(!isOpen));
  box.classList.toggle("as-diagram", !isOpen);
  if (isOpen) return box.querySelector("iframe")?.remove();
  const text = box.querySelector("pre > code")?.textContent ?? "";
  box.querySelector(".bar")!.after(openFrame("/frames/preview", t("code.preview"), text, () => undefined));
}

/** Load a picture of another site, after the person asked for it. */
export function showPicture(place: Element, button: Element): void {
  const url = foreignPicture(place.getAttribute("title") ?? "");
  if (url === null) return;
  const frame = openFrame(`/frames/picture?origin=${encodeURIComponent(url.origin)}`, t("answer.picture_from", { site: url.host }), url.href, (error) => {
    if (error === null) return;
    frame.replaceWith(Object.assign(document.createElement("span"), { className: "status", textContent: t("answer.no_picture") }));
  });
  button.replaceWith(frame);
}
