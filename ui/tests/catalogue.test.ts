// Every text that a person reads is in the catalogue, and every text in the catalogue is used.
import { readdirSync, readFileSync } from "node:fs";
import { parseSync } from "vite";
import { expect, test } from "vitest";
import english from "../src/catalogue/en.json";

interface Node { type: string; start: number; [part: string]: unknown }
const CATALOGUE = "src/catalogue";
/** Attributes and properties of components that people read or hear. */
const SPOKEN = new Set(["aria-label", "title", "placeholder", "alt", "label", "name", "menu", "button", "detail"]);
/** Not translated: the name of the program, and a line of the settings file. */
const ALLOWED = new Set(["Tenax", "[memory]\nreview = false"]);
/** Elements with a `name` that nobody reads: of a form field, an icon, an offer, a file. */
const NOT_READ = new Set(["input", "Icon", "OfferButton", "Download", "Setting", "Radios"]);
const sources = readdirSync("src", { recursive: true, encoding: "utf8" }).filter((name) => /\.tsx?$/.test(name));
const isNode = (value: unknown): value is Node => typeof value === "object" && value !== null && typeof (value as Node).type === "string";

function parse(name: string): Node {
  const parsed = parseSync(name, readFileSync(`src/${name}`, "utf8"));
  expect(parsed.errors, name).toEqual([]);
  return parsed.program as unknown as Node;
}

function walk(node: Node, visit: (node: Node) => boolean | void): void {
  if (visit(node) === false) return;
  for (const part of Object.values(node)) for (const child of Array.isArray(part) ? part : [part]) if (isNode(child)) walk(child, visit);
}

const quasis = (node: Node): string[] => (node["quasis"] as { value: { cooked: string } }[]).map((part) => part.value.cooked);
const textOf = (node: Node): string | null =>
  node.type === "Literal" && typeof node["value"] === "string" ? node["value"] : node.type === "TemplateLiteral" ? quasis(node).join("") : null;
const nameOf = (node: unknown): string => (isNode(node) ? String(node["name"]) : "");

/** The texts that an expression can give to a person. Arguments of calls and comparisons are not among them. */
function* results(node: Node): Generator<string> {
  const text = textOf(node);
  if (text !== null) yield text;
  const parts: Record<string, string[]> = {
    ConditionalExpression: ["consequent", "alternate"],
    LogicalExpression: ["left", "right"],
    ParenthesizedExpression: ["expression"],
    JSXExpressionContainer: ["expression"],
  };
  if (node.type === "BinaryExpression" && node["operator"] === "+") for (const side of ["left", "right"]) yield* results(node[side] as Node);
  for (const part of parts[node.type] ?? []) yield* results(node[part] as Node);
}

/** The texts of a file that a person reads, and that are not in the catalogue. */
function outside(name: string, program: Node): string[] {
  const source = readFileSync(`src/${name}`, "utf8");
  const found: string[] = [];
  const check = (node: Node, text: string, isRead = /\p{L}/u) => {
    if (isRead.test(text) && !ALLOWED.has(text.trim())) found.push(`${name}:${source.slice(0, node.start).split("\n").length}: ${text.trim()}`);
  };
  walk(program, (node) => {
    if (node.type === "JSXText") check(node, String(node["value"]));
    if (node.type === "JSXElement" || node.type === "JSXFragment")
      for (const child of node["children"] as Node[])
        // Text in <code> and <pre> is for programs.
        if (child.type === "JSXExpressionContainer" && nameOf((node["openingElement"] as Node | undefined)?.["name"]) !== "code")
          for (const text of results(child)) check(child, text);
    if (node.type === "JSXElement") {
      const opening = node["openingElement"] as Node;
      const element = nameOf(opening["name"]);
      for (const attribute of opening["attributes"] as Node[])
        if (SPOKEN.has(nameOf(attribute["name"])) && isNode(attribute["value"]) && !(nameOf(attribute["name"]) === "name" && NOT_READ.has(element)))
          for (const text of results(attribute["value"])) check(attribute, text);
      return element !== "code";
    }
    if (node.type === "CallExpression" && nameOf(node["callee"]) === "toast") for (const text of results((node["arguments"] as Node[])[0]!)) check(node, text);
    if (node.type === "NewExpression" && nameOf(node["callee"]) === "Problem")
      for (const argument of node["arguments"] as Node[]) for (const text of results(argument)) check(node, text);
    // Texts of dialogs, toasts and tables: a sentence, or a word with a capital, as the value of a property.
    if (node.type === "Property" && ["title", "text", "label", "hint", "error"].includes(nameOf(node["key"])))
      for (const text of results(node["value"] as Node)) if (!(text in english)) check(node, text); // or a table of keys
    return true;
  });
  return found;
}

/** A sentence anywhere else: at least two words that begin with a capital and end like a sentence. */
function sentences(name: string, program: Node): string[] {
  const found: string[] = [];
  walk(program, (node) => {
    if (node.type === "ImportDeclaration" || (node.type === "NewExpression" && nameOf(node["callee"]) === "Error")) return false;
    const text = textOf(node);
    if (text !== null && /^[A-Z][a-z’']* .*[a-z]/.test(text) && !ALLOWED.has(text)) found.push(`${name}: ${text}`);
    return true;
  });
  return found;
}

test.each(sources)("%s has no text outside the catalogue", (name) => {
  const program = parse(name);
  expect([...outside(name, program), ...sentences(name, program)]).toEqual([]);
});

const styles = readdirSync("src", { recursive: true, encoding: "utf8" }).filter((name) => name.endsWith(".css"));

test.each(styles)("%s has no text, and no left or right", (name) => {
  const style = readFileSync(`src/${name}`, "utf8");
  expect(style.match(/content: *"[^"]*[a-z]{2}[^"]*"/gi)).toBeNull();
  // Logical properties such as margin-inline-start turn with the language. The alignment of a table cell is the author's.
  const sides = style.replace(/\.to-(left|right) \{[^}]*\}/g, "");
  expect(sides.match(/(margin|padding|border)-(left|right)\b|text-align: *(left|right)\b|[\s;{](left|right):/g)).toBeNull();
});

test("a text outside the catalogue is found", () => {
  const wrong = [
    "<p>Hello</p>", '<p aria-label="Hello" />', '<p>{a ? t("x") : "Hello"}</p>', 'toast(bad ? "Hello" : t("x"))', "<p>{`${n} files`}</p>",
    '({ label: "Undo" })', 'new Problem(0, "Hello.")', '<IconButton name="Edit" />',
  ];
  const right = ['<p class="big">{t("x")} · {n}/{all}</p>', '<input name="about" />', "<code>tenax link</code>", 'toast(t("x"))', "<h2>Tenax</h2>", '<p>{kind === "text" && t("x")}</p>'];
  const count = (code: string) => outside("main.tsx", parseSync("a.tsx", code).program as unknown as Node).length;
  expect(wrong.map(count)).toEqual(wrong.map(() => 1));
  expect(right.map(count)).toEqual(right.map(() => 0));
});

test("every text is used, and every used text exists", () => {
  const keys = new Set(Object.keys(english));
  const literals = new Set<string>();
  const patterns: RegExp[] = [];
  const missing: string[] = [];
  for (const name of sources)
    walk(parse(name), (node) => {
      if (node.type === "Literal" && typeof node["value"] === "string") literals.add(node["value"]);
      if (node.type !== "CallExpression" || !["t", "tx", "command"].includes(nameOf(node["callee"]))) return;
      const first = (node["arguments"] as Node[])[0]!;
      if (first.type === "TemplateLiteral") patterns.push(new RegExp(`^${quasis(first).map((piece) => piece.replaceAll(".", "\\.")).join("[\\w.-]+")}$`));
      else for (const key of results(first)) if (!keys.has(key)) missing.push(`${name}: ${key}`);
    });
  const unused = [...keys].filter((key) => !literals.has(key) && !patterns.some((pattern) => pattern.test(key)));
  expect({ missing, unused }).toEqual({ missing: [], unused: [] });
});

const placeholders = (text: unknown): string[] => [...new Set(JSON.stringify(text).match(/\{\w+\}/g) ?? [])].sort();

test.each(readdirSync(CATALOGUE).filter((name) => name.endsWith(".json")))("%s has the keys and placeholders of English", (name) => {
  const other = JSON.parse(readFileSync(`${CATALOGUE}/${name}`, "utf8")) as Record<string, unknown>;
  for (const [key, text] of Object.entries(other)) {
    expect(Object.keys(english), key).toContain(key);
    expect(placeholders(text), key).toEqual(placeholders(english[key as keyof typeof english]));
    if (typeof text === "object") expect(Object.keys(text as object), key).toContain("other");
  }
});
