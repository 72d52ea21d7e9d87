// Signed URLs of pictures and downloads, which the browser fetches itself. The server signs them for this device, for minutes.
import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { call } from "./api";
import { urlOf } from "./paths";
import { attempt } from "./state";

const RENEW_MS = 4 * 60_000;
const RETRY_MS = 5000;
const BATCH_MAX = 100;
type Waiting = { path: string; give: (address: string) => void; fail: (error: unknown) => void };
let waiting: Waiting[] = [];

/** Request the signed URL of a path. Calls in the same tick share a request. */
function sign(path: string): Promise<string> {
  return new Promise((give, fail) => { if (waiting.push({ path, give, fail }) === 1) queueMicrotask(() => void signAll()); });
}

async function signAll(): Promise<void> {
  const all = waiting;
  waiting = [];
  for (let n = 0; n < all.length; n += BATCH_MAX) {
    const batch = all.slice(n, n + BATCH_MAX);
    try {
      const { addresses } = await call<{ addresses: string[] }>("POST", "/api/addresses", { paths: batch.map((request) => request.path) });
      batch.forEach((request, i) => request.give(urlOf(addresses[i]!)));
    } catch (error) {
      batch.forEach((request) => request.fail(error));
    }
  }
}

/** The signed URL of a path. It is renewed before it expires and when the page becomes visible; undefined at first. */
export function useAddress(path: string): string | undefined {
  const [address, setAddress] = useState<string>();
  useEffect(() => {
    let timer: ReturnType<typeof setTimeout> | undefined;
    let gone = false;
    const renew = () => {
      clearTimeout(timer);
      sign(path).then(
        (next) => {
          if (gone) return;
          setAddress(next);
          timer = setTimeout(renew, RENEW_MS);
        },
        () => { if (!gone) timer = setTimeout(renew, RETRY_MS); },
      );
    };
    const seen = () => document.visibilityState === "visible" && renew();
    renew();
    document.addEventListener("visibilitychange", seen);
    return () => {
      gone = true;
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", seen);
    };
  }, [path]);
  return address;
}

/** Download the file at a path now. Returns true if the download began. */
export const download = (path: string): Promise<boolean | undefined> => attempt(async () => {
  const link = document.createElement("a");
  link.href = await sign(path);
  link.download = ""; // the server names the file
  link.click();
  return true;
});

interface DownloadProps { path: string; name: string | undefined; class?: string; children: ComponentChildren }

/** A link that downloads the file at a path. */
export function Download({ path, name, children, class: style }: DownloadProps) {
  const address = useAddress(path);
  if (address === undefined) return <span class={style}>{children}</span>;
  return <a class={style} href={address} download={name}>{children}</a>;
}

/** Show the pictures below an element that are attachments, once each. */
export function showOwnPictures(within: Element): void {
  for (const link of within.querySelectorAll<HTMLAnchorElement>(".picture.own:not(.done) > a")) {
    link.parentElement!.classList.add("done");
    const show = (address: string) => {
      const picture = Object.assign(document.createElement("img"), { alt: link.textContent ?? "", src: address });
      picture.onload = () => link.replaceWith(picture);
    };
    sign(link.getAttribute("href") ?? "").then(show, () => undefined); // the name stays
  }
}
