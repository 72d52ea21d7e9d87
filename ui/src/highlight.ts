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
import { sanitise } from "./markdown";

const CODE_MAX = 50_000;
const languages = { bash, c, cpp, css, diff, go, ini, java, javascript, json, markdown, python, rust, sql, typescript, xml, yaml };
for (const [name, language] of Object.entries(languages)) hljs.registerLanguage(name, language);
hljs.registerAliases(["console", "shell", "zsh"], { languageName: "bash" });

/** Highlight the code blocks below an element, once each. */
export function highlight(within: Element): void {
  for (const code of within.querySelectorAll("pre > code:not(.done)")) {
    code.classList.add("done");
    const text = code.textContent ?? "";
    const language = /language-(\S+)/.exec(code.className)?.[1] ?? "";
    if (text.length > CODE_MAX || hljs.getLanguage(language) === undefined) continue;
    code.innerHTML = sanitise(hljs.highlight(text, { language, ignoreIllegals: true }).value);
  }
}
