// How the page is built: hashed files in assets/, nothing inlined (the server's policy allows no inline code).
import { defineConfig } from "vitest/config";
import { frames } from "./frames.ts";
import { notices } from "./notices.ts";
import { shell } from "./shell.ts";

export default defineConfig({
  // The scripts name each other relative to themselves. The server writes the path of the page into index.html.
  base: "./",
  plugins: [frames(), notices(), shell()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/tenax/web/page",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
    rolldownOptions: {
      input: { index: "index.html", service: "src/service.ts" },
      // A service worker answers only for addresses below its own, and its name must not change.
      output: {
        entryFileNames: ({ name }) => (name === "service" ? "service.js" : "assets/[name]-[hash].js"),
        // What the first screen and a part that loads later both need is one file, not one for each pair of parts.
        codeSplitting: { groups: [{ name: "base", test: /rolldown|node_modules.(preact|@preact)|src.(text|words|choices|morph|state|api|popup|icon|preferences|browserStorage|prose|dialogs|paths|signed|lazy|memo|key|form|hooks)\.tsx?$/ }] },
      },
    },
  },
  worker: { format: "es" },
  server: { proxy: { "/api": "http://127.0.0.1:8629" } },
  test: { environment: "jsdom", include: ["tests/*.test.ts"] },
});
