// Syntax highlighting, loaded with the first code block.
import hljs from "highlight.js/lib/core";
import bash from "highlight.js/lib/languages/bash";
import c from "highlight.js/lib/languages/c";
import cpp from "highlight.js/lib/languages/cpp";
import css from "highlight.js/lib/languages/css";
import diff from "highlight.js/lib/languages/diff";
import go from "highlight.js/lib/languages/go";
import ini from "highlight.js/lib/languages/ini";
import java from "highlight.js/lib/languages/java";
import javascript from "highlight.js/lib/languages/javascript";
import json from "highlight.js/lib/languages/json";
import markdown from "highlight.js/lib/languages/markdown";
import python from "highlight.js/lib/languages/python";
import rust from "highlight.js/lib/languages/rust";
import sql from "highlight.js/lib/languages/sql";
import typescript from "highlight.js/lib/languages/typescript";
import xml from "highlight.js/lib/languages/xml";
import yaml from "highlight.js/lib/languages/yaml";
import { spansOf } from "./markdown";
import type { morph } from "./morph";

const CODE_MAX = 50_000;
/** Longer code gets its colours when it is complete. */
const GROWING_MAX = 20_000;
const languages = { bash, c, cpp, css, diff, go, ini, java, javascript, json, markdown, python, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(languages)) hljs.registerLanguage(name, language);
hljs.registerAliases(["console", "shell", "zsh"], { languageName: "bash" });

/** The text with its colours, and when a growing text may be highlighted again. */
const states = new WeakMap<Element, { text: string; next: number }>();

/** Highlight the code blocks below an element. Growing code is highlighted again at most a fifth of the time; until then its end is plain.
    `change` comes from the page: two files that import the same one cost a request more. */
export function highlight(within: Element, change: typeof morph, growing = false): void {
  for (const code of within.querySelectorAll("pre > code")) {
    const text = code.textContent ?? "";
    const state = states.get(code) ?? { text: "", next: 0 };
    const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
    const start = performance.now();
    if (text === state.text || text.length > (growing ? GROWING_MAX : CODE_MAX) || hljs.getLanguage(language) === undefined) continue;
    if (growing && start < state.next) continue;
    const spans = spansOf(hljs.highlight(text, { language, ignoreIllegals: true }).value);
    if (spans?.textContent === text) change(code, spans);
    states.set(code, { text, next: start + 5 * (performance.now() - start) });
  }
}
