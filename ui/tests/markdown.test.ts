import { describe, expect, it } from "vitest";
import { blocks, mend, type Block } from "../src/markdown";
import { drawMath } from "../src/math";

const html = (text: string): string => blocks(text).map((each) => each.html).join("");
const element = (text: string): HTMLElement => {
  const box = document.createElement("div");
  box.innerHTML = html(text);
  return box;
};

describe("markdown is safe", () => {
  it.each([
    "<script>alert(1)</script>",
    '<img src=x onerror="alert(1)">',
    "[x](javascript:alert(1))",
    "[x](data:text/html,<script>alert(1)</script>)",
    "[x](vbscript:alert(1))",
    "![x](javascript:alert(1))",
    "```<script>alert(1)</script>\n</code></pre><script>alert(1)</script>\n```",
    '[x](https://a.example/" onmouseover="alert(1))',
    '<a href="x" style="color:red" onclick="alert(1)">x</a>',
    "|a|\n|-|\n|<svg onload=alert(1)>|",
    '```"onload="alert(1)\nx\n```',
    "# <iframe src=//evil.example>",
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

  it("cells are aligned by class, since the policy allows no style", () => {
    expect(html("|a|\n|-:|\n|1|")).toContain('class="to-right"');
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

  it("closes what is open at its end", () => {
    expect(mend("a **bo")).toBe("a **bo**");
    expect(mend("a **bo*")).toBe("a **bo**");
    expect(mend("a `co")).toBe("a `co`");
    expect(mend("a **b** c")).toBe("a **b** c");
    expect(mend("```py\nx = `")).toBe("```py\nx = `");
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
    ["Energy: \\(E = mc^2\\).", "\\(E = mc^2\\)"],
    ["\\[\n\\int_0^1 x\\,dx\n- 1\n\\]", "\\[\n\\int_0^1 x\\,dx\n- 1\n\\]"],
    ["$$\na_1 * b_1 * c\n$$", "$$\na_1 * b_1 * c\n$$"],
    ["so $a_1 + b_1$ holds", "$a_1 + b_1$"],
    ["a \\(<img src=x onerror=alert(1)>\\) b", "\\(<img src=x onerror=alert(1)>\\)"],
  ])("%s keeps its source", (text, source) => {
    expect(element(text).querySelector(".math")?.textContent).toBe(source);
    expect(element(text).querySelector("img, em, li")).toBeNull();
  });

  it.each(["It costs $5 and $6.", "`$a$`", "```\n$a$ \\(b\\)\n```", "\\( never closed", "$ a $"])("%s is no formula", (text) => {
    expect(element(text).querySelector(".math")).toBeNull();
  });

  it("takes no longer for formulas that are never closed", () => {
    expect(element("\\(x ".repeat(40_000)).querySelector(".math")).toBeNull();
  });

  it("is drawn as MathML, and only as MathML", () => {
    const box = element("\\(\\frac{a}{b}\\) and \\(\\href{javascript:alert(1)}{x}\\) and \\(\\broken{\\)");
    drawMath(box);
    expect(box.querySelector("mfrac")).not.toBeNull();
    expect(box.textContent).toContain("\\broken{");
    expect(box.querySelector("a, [href], [style], annotation")).toBeNull();
  });
});
