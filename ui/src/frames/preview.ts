// Runs in the sandboxed frame of a preview: shows HTML in an inner frame where no script runs. The inner frame inherits the policy of this one,
// which allows no network.
interface Purifier { sanitize(html: string, rules: object): string }

addEventListener("message", ({ source, data }: MessageEvent<{ text: string; dark: boolean }>) => {
  if (source !== parent) return;
  const { DOMPurify } = globalThis as unknown as { DOMPurify: Purifier };
  // No policy covers the connections that <link> opens in advance.
  const html = DOMPurify.sanitize(data.text, { WHOLE_DOCUMENT: true, ADD_TAGS: ["style"], FORBID_TAGS: ["link", "base", "meta", "form", "script"] });
  const inner = document.createElement("iframe");
  inner.setAttribute("sandbox", "");
  inner.srcdoc = `<!doctype html>${html}`;
  document.body.replaceChildren(inner);
  parent.postMessage({ height: 320 }, "*");
});
