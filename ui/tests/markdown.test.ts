import { describe, expect, it } from "vitest";
import { highlight } from "../src/highlight";
import { blocks, foreignPicture, mend, type Block } from "../src/markdown";
import { drawMath } from "../src/math";
import { morph } from "../src/morph";

const html = (text: string): string => blocks(text).map((each) => each.html).join("");
const element = (text: string): HTMLElement => {
  const box = document.createElement("div");
  box.innerHTML = html(text);
  return box;
};
const become = (box: Element, text: string): void => {
  const fresh = document.createElement("template");
  fresh.innerHTML = html(text);
  morph(box, fresh.content);
};

describe("markdown is safe", () => {
  it.each([
    "<script>alert(1)</script>", '<img src=x onerror="alert(1)">', "[x](javascript:alert(1))", "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:alert(1))", "![x](javascript:alert(1))", "```<script>alert(1)</script>\n</code></pre><script>alert(1)</script>\n```",
    '[x](https://a.example/" onmouseover="alert(1))', '<a href="x" style="color:red" onclick="alert(1)">x</a>', "|a|\n|-|\n|<svg onload=alert(1)>|",
    '```"onload="alert(1)\nx\n```', "# <iframe src=//evil.example>", "[^x]: <img src=x onerror=alert(1)> [y](javascript:alert(1))\n\nsee[^x]",
    '[^"onclick="alert(1)]: x\n\nsee[^"onclick="alert(1)]', "```mermaid\ngraph TD; A[<script>alert(1)</script>]\nclick A javascript:alert(1)\n```",
    '![" onerror="alert(1)](https://a.example/"onload="alert(1))',
  ])("%s", (text) => {
    const box = element(text);
    expect(box.querySelector("script, iframe, svg, style, object, form, input")).toBeNull();
    for (const each of box.querySelectorAll("*"))
      for (const { name, value } of each.attributes) {
        expect(name).not.toMatch(/^on|^style$/);
        if (name === "href" || name === "src") expect(value).not.toMatch(/^\s*(javascript|vbscript|data:text)/i);
      }
  });

  it("links open elsewhere and tell nothing of where they were", () => {
    const link = element("[x](https://a.example/)").querySelector("a")!;
    expect([link.rel, link.target]).toEqual(["noopener noreferrer", "_blank"]);
  });

  it("pictures from elsewhere are links; nothing is fetched unasked", () => {
    expect(element("![cat](https://a.example/cat.png)").querySelector("img")).toBeNull();
    expect(element("![cat](//a.example/cat.png)").querySelector("img")).toBeNull();
    expect(new URL(element("![cat](/\\a.example/cat.png)").querySelector("img")!.src).origin).toBe(location.origin);
    expect(element("![cat](https://a.example/cat.png)").querySelector("a")?.href).toBe("https://a.example/cat.png");
    expect(element("![dot](data:image/png;base64,AAAA)").querySelector("img")).not.toBeNull();
    expect(element("![own](/files/a.png)").querySelector("img")?.getAttribute("src")).toBe("/files/a.png");
  });

  it("cells are aligned by class, since the policy allows no style", () => { expect(html("|a|\n|-:|\n|1|")).toContain('class="to-right"'); });
});

describe("pictures of other sites", () => {
  it("have a button that names the site", () => {
    const box = element("![cat](https://user-content.a.example:8443/cat.png?x=1)");
    expect(box.querySelector("button.show")?.textContent).toBe("Show picture from user-content.a.example:8443");
    expect(box.querySelector("img, iframe")).toBeNull();
  });

  it.each([
    "http://a.example/x.png", "https://user:secret@a.example/x.png", "https://user@a.example/x.png", "https://[::1]/x.png",
    "https://a.exa\nmple/x.png", "https:\\\\a.example/x.png", "https://a.example;img-src *", "https://", "ftp://a.example/x.png",
    "blob:https://a.example/1", "javascript:alert(1)", "//a.example/x.png",
  ])("%j cannot be loaded", (address) => {
    expect(foreignPicture(address)).toBeNull();
    expect(element(`![x](<${address}>)`).querySelector("button.show, img[src^='http'], iframe")).toBeNull();
  });

  it("with control characters cannot be loaded", () => {
    expect(["https://a.example/\u0000", "https://a.example/\u0001", "https://a.example/\u007f", "https://a.example/\t"].map(foreignPicture)).toEqual([null, null, null, null]);
  });

  it("name the site as the browser will ask for it", () => {
    expect(foreignPicture("https://B\u00fccher.example/x.png")?.host).toBe("xn--bcher-kva.example");
  });

  it("of the conversation are named until they are there", () => {
    const path = `/api/conversations/abc/attachments/${"0".repeat(64)}`;
    expect(element(`![plan](${path})`).querySelector(".picture.own a")?.getAttribute("href")).toBe(path);
  });
});

describe("footnotes", () => {
  const text = "One[^1] and two[^long].\n\nNot one[^other], `[^1]`.\n\n[^1]: The *first*\n    goes on.\n[^long]: The second.\n\n    Its second paragraph.\n\nEnd.";

  it("link to their definition, in whatever block it stands", () => {
    const box = element(text);
    expect([...box.querySelectorAll("sup a")].map((link) => link.getAttribute("href"))).toEqual(["#note-1", "#note-long"]);
    expect([...box.querySelectorAll(".footnote")].map((note) => note.textContent)).toEqual(["1 The first\ngoes on.", "long The second.\n\nIts second paragraph."]);
    expect(box.textContent).toContain("Not one[^other], [^1].");
    expect(box.querySelector(".footnote em")?.textContent).toBe("first");
    expect(box.textContent).toContain("End.");
  });

  it("have no ids, which would clash between answers", () => { expect(element(text).querySelector("[id], [name], [target]")).toBeNull(); });

  it("do not jump while the answer grows, and end as they would have been rendered at once", () => {
    const numbered = text.replaceAll("long", "2");
    let made: Block[] = [];
    for (let n = 1; n <= numbered.length; n++) {
      made = blocks(numbered.slice(0, n), made, true);
      expect(made[0]!.html).not.toContain("[");
    }
    expect(blocks(numbered, made)).toEqual(blocks(numbered));
  });

  it("links can be defined anywhere too", () => {
    expect(element("See [here][a].\n\nMore.\n\n[a]: https://a.example/x").querySelector("a")?.href).toBe("https://a.example/x");
    expect(element("See [here][a].\n\nMore.\n\n[a]: javascript:alert(1)").querySelector("a")).toBeNull();
  });
});

describe("blocks of code", () => {
  it("can be previewed if they are HTML or SVG", () => {
    const has = (text: string) => element(text).querySelector(".preview") !== null;
    expect([has("```html\n<p>\n```"), has("```SVG\n<svg/>\n```"), has("```xml\n<svg></svg>\n```"), has("```xml\n<a/>\n```"), has("```py\nx\n```")]).toEqual([true, true, true, false, false]);
  });

  it("can be folded if they are long", () => {
    const long = (lines: number) => element(`\`\`\`\n${"x\n".repeat(lines)}\`\`\``).querySelector(".unfold");
    expect(long(30)).toBeNull();
    expect(long(31)?.textContent).toBe("Show less");
  });

  it("keep their elements and colours while they grow", () => {
    const box = document.createElement("div");
    const show = (text: string) => {
      become(box, text);
      highlight(box, morph);
    };
    show("```py\nx = 'a'\n");
    const [code, span] = [box.querySelector("code"), box.querySelector(".hljs-string")];
    box.querySelector(".code")!.classList.add("wrapped");
    show("```py\nx = 'a'\nif x: return <b>\n");
    expect([box.querySelector("code"), box.querySelector(".hljs-string")]).toEqual([code, span]);
    expect(box.querySelector("code")).toBe(code);
    expect(code!.textContent).toBe("x = 'a'\nif x: return <b>\n");
    expect(box.querySelectorAll(".hljs-keyword").length).toBe(2);
    expect(box.querySelector(".code.wrapped")).not.toBeNull();
    show("Something else");
    expect(box.innerHTML).toBe(html("Something else"));
  });

  it.each(["para **bold** x", "- a\n- b\n\n  c", "> q\n\n| a |\n|-|\n| 1 |", "\\(x\\) `y` ![p](https://a.example/p.png)"])("%j becomes any other text", (text) => {
    const box = document.createElement("div");
    for (const next of ["first [link](https://a.example/)", text, "1. one\n2. two", text]) {
      become(box, next);
      expect(box.innerHTML).toBe(html(next));
    }
  });
});

describe("a text that grows", () => {
  const text = "# One\n\npara **bold** and\nmore\n\n- a\n- b\n\n  c\n\n```py\nx = 1\n\ny\n```\n\n| a |\n|---|\n| 1 |\n\nend 🧷\n";

  it("ends as it would have been rendered at once", () => {
    let made: Block[] = [];
    for (let n = 1; n <= text.length; n++) made = blocks(text.slice(0, n), made, true);
    made = blocks(text, made);
    expect(made).toEqual(blocks(text));
    expect(made.map((each) => each.source).join("")).toBe(text);
  });

  it("keeps the blocks before its last as they are", () => {
    const first = blocks("one\n\ntwo\n\nthr");
    const then = blocks("one\n\ntwo\n\nthree", first);
    expect(then[0]).toBe(first[0]);
    expect(then[1]).toBe(first[1]);
    expect(then[2]?.html).toContain("three");
  });

  it("is rendered anew when it became another text", () => {
    expect(blocks("other\n\ntext", blocks("one\n\ntwo\n\nthree"))).toEqual(blocks("other\n\ntext"));
  });

  it.each([
    ["a **bo", "a **bo**"], ["a **bo*", "a **bo**"], ["a `co", "a `co`"], ["a **b** c", "a **b** c"], ["```py\nx = `", "```py\nx = `"],
    ["a *it", "a *it*"], ["a ***bo", "a ***bo***"], ["a **bo *it", "a **bo *it***"], ["a **bo *it* ", "a **bo *it***"], ["a __bo", "a __bo__"], ["a ~~ol", "a ~~ol~~"],
    ["snake_case x", "snake_case x"], ["2 * 3", "2 * 3"], ["a **", "a "], ["a **`", "a"], ["a **b `co", "a **b `co`**"], ["a ``c`d", "a ``c`d``"], ["a ``c`d`", "a ``c`d``"],
    ["a \\*b", "a \\*b"], ["a \\", "a "], ["a [te", "a te"], ["a [**te", "a **te**"], ["a [te]", "a te"], ["a [te](https://a", "a te"], ["a [te](x) b", "a [te](x) b"], ["a [te] b", "a [te] b"],
    ["a ![alt](https://a", "a "], ["a ![al", "a "], ["a[^", "a"], ["a[^1]", "a[^1]"], ["a \\(x", "a "], ["a \\(x\\) b", "a \\(x\\) b"], ["$$\na", ""], ["so $a", "so "], ["costs $5 a", "costs $5 a"],
    ["$HOME is where your files are, as every Unix says since the first day of it all", "$HOME is where your files are, as every Unix says since the first day of it all"],
    ["```py", ""], ["```py\nx\n``", "```py\nx\n"], ["```py\nx\n```", "```py\nx\n```"], ["- a\n  ```js\n  a **b", "- a\n  ```js\n  a **b"], ["para\n-", "para\n"], ["para\n- ", "para\n"], ["para\n==", "para\n"],
    ["- one\n- **tw", "- one\n- **tw**"], ["- [ ", "- "], ["- [x] **a", "- [x] **a**"], ["| a | b |", ""], ["| a |\n|--", ""], ["| a |\n|---|\n| **x", "| a |\n|---|\n| **x**"], ["## He **a", "## He **a**"], ["> q **a", "> q **a**"],
  ])("%j is shown as %j", (text, shown) => expect(mend(text)).toBe(shown));

  it("shows no mark while it grows", () => {
    const whole = "# T\n\nSome **bold *both* text**, `code`, a [link](https://a.example/) and \\(x^2\\).\n\n- **one** and\n- ~~two~~\n\n| a | b |\n|---|---|\n| **c** | `d` |\n\n```py\nx\n```\n\n$$\nE\n$$\n";
    for (let n = 1; n <= whole.length; n++) {
      const box = document.createElement("div");
      box.innerHTML = blocks(whole.slice(0, n), [], true).map((block) => block.html).join("");
      box.querySelectorAll(".math").forEach((formula) => formula.remove());
      expect(box.textContent).not.toMatch(/[*`~[\]|$\\#]/);
    }
  });

  it.each(["[", "*", "`a ", "$a", "\\(", "![a](", "- [", "| ", "> ", " ", "_a "])("takes no longer for many %j", (mark) => {
    expect(mend(mark.repeat(30_000)).length).toBeLessThanOrEqual(mark.length * 30_000 + 10);
  });
});

describe("task lists", () => {
  it("have boxes", () => {
    const box = element("- [x] done\n- [ ] **open**\n- [y] no task\n- plain [x] text");
    expect([...box.querySelectorAll("li.task-item")].map((item) => item.textContent?.trim())).toEqual(["☑ done", "☐ open"]);
    expect(box.textContent).toContain("[y] no task");
    expect(box.textContent).toContain("plain [x] text");
  });
});

describe("math", () => {
  it.each([
    ["Energy: \\(E = mc^2\\).", "\\(E = mc^2\\)"], ["\\[\n\\int_0^1 x\\,dx\n- 1\n\\]", "\\[\n\\int_0^1 x\\,dx\n- 1\n\\]"],
    ["$$\na_1 * b_1 * c\n$$", "$$\na_1 * b_1 * c\n$$"], ["so $a_1 + b_1$ holds", "$a_1 + b_1$"],
    ["a \\(<img src=x onerror=alert(1)>\\) b", "\\(<img src=x onerror=alert(1)>\\)"],
  ])("%s keeps its source", (text, source) => {
    expect(element(text).querySelector(".math")?.textContent).toBe(source);
    expect(element(text).querySelector("img, em, li")).toBeNull();
  });

  it.each(["It costs $5 and $6.", "`$a$`", "```\n$a$ \\(b\\)\n```", "\\( never closed", "$ a $"])("%s is no formula", (text) => {
    expect(element(text).querySelector(".math")).toBeNull();
  });

  it("takes no longer for formulas that are never closed", () => { expect(element("\\(x ".repeat(40_000)).querySelector(".math")).toBeNull(); });

  it("is drawn as MathML, and only as MathML", () => {
    const box = element("\\(\\frac{a}{b}\\) and \\(\\href{javascript:alert(1)}{x}\\) and \\(\\broken{\\)");
    drawMath(box);
    expect(box.querySelector("mfrac")).not.toBeNull();
    expect(box.textContent).toContain("\\broken{");
    expect(box.querySelector("a, [href], [style], annotation")).toBeNull();
  });
});
