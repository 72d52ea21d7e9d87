// Runs in the sandboxed frame of a diagram: draws the source that the page sends, and reports the height or the error.
// The frame has an opaque origin and no network (web/frames.py), so a mistake in Mermaid reaches nothing of the page.
interface Mermaid { initialize(options: object): void; render(id: string, text: string): Promise<{ svg: string }> }

addEventListener("message", ({ source, data }: MessageEvent<{ text: string; dark: boolean }>) => {
  if (source !== parent) return;
  const { mermaid } = globalThis as unknown as { mermaid: Mermaid };
  const report = (answer: object) => parent.postMessage(answer, "*"); // the policy names the only possible parent
  document.documentElement.style.colorScheme = data.dark ? "dark" : "light";
  // Colours of the page (style/base.css). Mermaid derives the others.
  const [ground, box, ink, edge, line] = data.dark ? ["#232327", "#303035", "#ececef", "#4cc7ab", "#adadb6"] : ["#f3f3f5", "#ffffff", "#1a1a1e", "#0b6b58", "#5a5a64"];
  const themeVariables = { darkMode: data.dark, background: ground, edgeLabelBackground: ground, primaryColor: box, primaryTextColor: ink, primaryBorderColor: edge, lineColor: line };
  const draw = async () => {
    mermaid.initialize({
      startOnLoad: false, securityLevel: "strict", suppressErrorRendering: true, theme: "base", themeVariables, maxTextSize: 20_000, maxEdges: 300, fontFamily: "system-ui, sans-serif",
    });
    const { svg } = await mermaid.render("drawing", data.text);
    document.body.innerHTML = svg;
    report({ height: Math.ceil(document.body.scrollHeight) });
  };
  draw().catch((error: unknown) => report({ error: error instanceof Error ? error.message : String(error) }));
});
