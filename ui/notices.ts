// Writes third-party.txt into the build: which packages are in it, under which licence, with the licence's text.
// A package counts if one of its modules is bundled.
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import type { Plugin } from "vite";
import { FRAME_MODULES } from "./frames.ts";

interface Manifest { name: string; version: string; license?: string }

/** The folder of the package that a module file belongs to, or null for our own. */
function packageOf(module: string): string | null {
  const found = /^\0?(.*\/node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(module)?.[1];
  return found !== undefined && existsSync(join(found, "package.json")) ? found : null;
}

function notice(folder: string): string {
  const { name, version, license = "see below" } = JSON.parse(readFileSync(join(folder, "package.json"), "utf8")) as Manifest;
  const file = readdirSync(folder).find((each) => /^(licen[cs]e|copying)/i.test(each));
  if (file === undefined) throw new Error(`The package ${name} carries no licence text; look for it and add it here.`);
  return `${name} ${version} (${license})\n\n${readFileSync(join(folder, file), "utf8").trim()}\n`;
}

export function notices(): Plugin {
  return {
    name: "notices",
    apply: "build",
    generateBundle(_options, bundle) {
      const chunks = Object.values(bundle).filter((each) => each.type === "chunk");
      const folders = new Set([...chunks.flatMap((chunk) => chunk.moduleIds), ...FRAME_MODULES].map(packageOf).filter((each) => each !== null));
      const parts = ["The page of Tenax contains these packages. Thank you.\n", ...[...folders].sort().map(notice)];
      const source = parts.join(`\n${"-".repeat(80)}\n\n`);
      this.emitFile({ type: "asset", fileName: "third-party.txt", source });
    },
  };
}
