// How the page is built: hashed files under /assets, nothing inlined (the server's policy allows no inline code).
import { defineConfig } from "vitest/config";
import { notices } from "./notices.ts";

export default defineConfig({
  base: "/",
  plugins: [notices()],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: {
    outDir: "../src/tenax/web/page",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  worker: { format: "es" },
  server: { proxy: { "/api": "http://127.0.0.1:8629" } },
  test: { environment: "jsdom", include: ["tests/*.test.ts"] },
});
