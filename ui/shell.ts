// Tells the service worker which files make the shell of the page: index.html, the files that it names, and the shared worker.
import { createHash } from "node:crypto";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";

export function shell(): Plugin {
  return {
    name: "shell",
    apply: "build",
    writeBundle({ dir }) {
      const folder = dir!;
      const page = readFileSync(join(folder, "index.html"), "utf8");
      const named = [...page.matchAll(/"\.\/(assets\/[^"]+)"/g)].map((match) => match[1]!);
      const workers = readdirSync(join(folder, "assets")).filter((name) => name.startsWith("worker-"));
      const files = [...new Set([...named, ...workers.map((name) => `assets/${name}`)])];
      const version = createHash("sha256").update(page).update(files.join()).digest("hex").slice(0, 12);
      const file = join(folder, "service.js");
      const code = readFileSync(file, "utf8").replaceAll("SHELL_FILES", JSON.stringify(files)).replaceAll("SHELL_VERSION", JSON.stringify(version));
      writeFileSync(file, code);
    },
  };
}
