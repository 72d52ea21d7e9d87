// Writes frames/NAME.html into the build: a document with its scripts inside. A sandboxed frame has an opaque origin, for which every request
// comes from another site, so it could load no script of ours without an exception in the server's guard.
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { transformWithOxc, type Plugin } from "vite";

const at = (path: string): string => fileURLToPath(new URL(path, import.meta.url));
const MERMAID = at("node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js");
const PURIFY = at("node_modules/dompurify/dist/purify.min.js");
/** The scripts of packages that a frame needs, before its own script. */
const FRAMES: Record<string, string[]> = { diagram: [MERMAID], preview: [PURIFY], picture: [] };
/** The files of packages in the frames, for their licences. */
export const FRAME_MODULES = Object.values(FRAMES).flat();

const STYLE =
  "html { background: transparent } body { margin: 0; overflow: auto; font: 14px/1.5 system-ui, sans-serif } " +
  "body:has(> svg) { padding: 12px } body > svg, body > img { display: block; max-width: 100%; height: auto; margin: auto } body > iframe { display: block; width: 100%; height: 100vh; border: 0; background: white }";

/** A script in a document ends at these characters, wherever they stand. */
const inline = (code: string): string => `<script>${code.replace(/\r\n?/g, "\n").replace(/<(?=\/script|!--|script)/gi, "\\x3C")}</script>`;

export function frames(): Plugin {
  return {
    name: "frames",
    apply: "build",
    async generateBundle() {
      for (const [name, packages] of Object.entries(FRAMES)) {
        const file = at(`src/frames/${name}.ts`);
        const { code } = await transformWithOxc(readFileSync(file, "utf8"), file, { sourcemap: false });
        const scripts = [...packages.map((script) => readFileSync(script, "utf8")), code].map(inline).join("\n");
        const head = `<meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>Tenax</title><style>${STYLE}</style>`;
        this.emitFile({ type: "asset", fileName: `frames/${name}.html`, source: `<!doctype html><html lang="en"><head>${head}</head><body></body>\n${scripts}</html>\n` });
      }
    },
  };
}
