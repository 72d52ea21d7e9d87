// Makes an element equal to a new one with few changes, so that a growing text keeps its selection, focus and scroll positions.

/** Make the children of `old` equal to those of `fresh`. */
export function morph(old: Element, fresh: Node): void {
  const wanted = [...fresh.childNodes];
  wanted.forEach((next, n) => {
    const now = old.childNodes[n];
    if (now === undefined) old.append(next);
    else if (!patch(now, next)) now.replaceWith(next);
  });
  while (old.childNodes.length > wanted.length) old.lastChild!.remove();
}

/** Set a text, which usually grew at its end. */
export function setText(element: Element, text: string): void {
  const before = element.textContent ?? "";
  const last = element.lastChild;
  if (before === text) return;
  if (last === null || !text.startsWith(before)) element.textContent = text;
  else if (last instanceof Text) last.appendData(text.slice(before.length));
  else element.append(text.slice(before.length));
}

function patch(now: ChildNode, next: ChildNode): boolean {
  if (now instanceof Text && next instanceof Text) {
    if (now.data === next.data) return true;
    if (next.data.startsWith(now.data)) now.appendData(next.data.slice(now.data.length));
    else now.data = next.data;
    return true;
  }
  if (!(now instanceof Element && next instanceof Element) || now.tagName !== next.tagName) return false;
  if (now.classList.contains("code") && next.classList.contains("code")) return patchCode(now, next);
  // The page draws into these; the title keeps what was drawn.
  if (/^(math|picture)\b/.test(now.className) && now.getAttribute("title") === (next.getAttribute("title") ?? next.textContent)) return true;
  if (now.attributes.length !== next.attributes.length || [...next.attributes].some(({ name, value }) => now.getAttribute(name) !== value)) return false;
  morph(now, next);
  return true;
}

/** A block of code keeps its buttons and its colours; only the text grows. */
function patchCode(now: Element, next: Element): boolean {
  const [old, fresh] = [now.querySelector("pre > code"), next.querySelector("pre > code")];
  if (old === null || fresh === null || old.classList[0] !== fresh.classList[0] || now.classList.contains("drawn")) return false;
  if (now.querySelector(".preview") === null && next.querySelector(".preview") !== null) return false;
  setText(old, fresh.textContent ?? "");
  const fold = next.querySelector(".unfold");
  if (fold !== null && now.querySelector(".unfold") === null) now.append(fold);
  return true;
}
