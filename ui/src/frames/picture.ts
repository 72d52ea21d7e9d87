// Runs in the sandboxed frame of a picture from another site. The policy of the frame allows pictures of that site only.
addEventListener("message", ({ source, data }: MessageEvent<{ text: string; dark: boolean }>) => {
  if (source !== parent) return;
  document.documentElement.style.colorScheme = data.dark ? "dark" : "light";
  const picture = document.createElement("img");
  picture.referrerPolicy = "no-referrer";
  picture.alt = "";
  picture.onload = () => parent.postMessage({ height: Math.ceil(picture.getBoundingClientRect().height) }, "*");
  picture.onerror = () => parent.postMessage({ error: "" }, "*");
  document.body.replaceChildren(picture);
  picture.src = data.text;
});
