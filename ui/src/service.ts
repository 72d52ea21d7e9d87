// The service worker: keeps the shell of the page (index.html and the files with hashed names), so that the page opens while the server is
// away and says "Reconnecting…". It holds no data: /api, /link and event streams go to the server without it.
// The build replaces the two names below (shell.ts).
declare const SHELL_FILES: string[];
declare const SHELL_VERSION: string;

interface Lifecycle extends Event { waitUntil(work: Promise<unknown>): void; addRoutes?(rules: unknown): Promise<void> }
interface Fetching extends Lifecycle { request: Request; respondWith(answer: Promise<Response>): void }
interface Clients {
  claim(): Promise<void>;
  matchAll(what: { type: "window" }): Promise<{ focus(): Promise<unknown>; postMessage(message: unknown): void }[]>;
  openWindow(path: string): Promise<unknown>;
}
const scope = self as unknown as EventTarget & { skipWaiting(): Promise<void>; clients: Clients; location: Location };
/** The path of the page, with a slash at its end. */
const BASE = new URL("./", scope.location.href).pathname;
const PREFIX = `tenax-shell-${BASE.slice(1)}`;
const NAME = PREFIX + SHELL_VERSION;
/** The paths of the page, without the path before them. /link is not among them: the worker never sees the code of a link. */
const PAGES = /^\/(c\/[^/]+|setup|memory|settings(\/[^/]*)?)?$/;
/** A server that does not answer for so long is away. */
const WAIT_MS = 5000;
/** The answers of a proxy whose server is away. */
const PROXY_ERRORS = [502, 504];

scope.addEventListener("install", (event) => {
  const fill = async () => {
    await caches.delete(NAME); // another program on this port may have made one
    const cache = await caches.open(NAME);
    await cache.addAll([new Request(BASE, { cache: "reload" }), ...SHELL_FILES.map((file) => BASE + file)]);
    await scope.skipWaiting();
  };
  (event as Lifecycle).waitUntil(fill());
  // Browsers that support it do not even wake the worker for the API.
  (event as Lifecycle).addRoutes?.({ condition: { urlPattern: `${BASE}api/*` }, source: "network" }).catch(() => undefined);
});

scope.addEventListener("activate", (event) => {
  const clean = async () => {
    const names = await caches.keys();
    await Promise.all(names.filter((name) => name.startsWith(PREFIX) && name !== NAME).map((name) => caches.delete(name)));
    await scope.clients.claim();
  };
  (event as Lifecycle).waitUntil(clean());
});

scope.addEventListener("fetch", (event) => {
  const { request } = event as Fetching;
  const { origin, pathname } = new URL(request.url);
  if (request.method !== "GET" || origin !== scope.location.origin) return;
  if (!pathname.startsWith(BASE)) return;
  const path = pathname.slice(BASE.length - 1);
  if (path.startsWith("/assets/")) (event as Fetching).respondWith(asset(request));
  else if (request.mode === "navigate" && PAGES.test(path)) (event as Fetching).respondWith(page(request));
});

scope.addEventListener("notificationclick", (event) => {
  const { notification } = event as Lifecycle & { notification: { data: string; close(): void } };
  notification.close();
  const open = async () => {
    const [page] = await scope.clients.matchAll({ type: "window" });
    if (page === undefined) return scope.clients.openWindow(BASE + notification.data.slice(1));
    page.postMessage({ open: notification.data });
    return page.focus();
  };
  (event as Lifecycle).waitUntil(open());
});

/** A file with a hashed name never changes: the copy is as good as the file. */
async function asset(request: Request): Promise<Response> {
  const cache = await caches.open(NAME);
  const kept = await cache.match(request);
  if (kept !== undefined) return kept;
  const answer = await fetch(request);
  if (answer.ok) await cache.put(request, answer.clone()).catch(() => undefined); // the disk may be full
  return answer;
}

/** The server decides which page is shown. The kept page is shown only if no server answers. */
async function page(request: Request): Promise<Response> {
  const kept = await (await caches.open(NAME)).match(BASE);
  if (kept === undefined) return fetch(request);
  const slow = new Promise<Response>((give) => setTimeout(() => give(kept), WAIT_MS));
  const asked = fetch(request).then((answer) => (PROXY_ERRORS.includes(answer.status) ? kept : answer));
  return Promise.race([asked.catch(() => kept), slow]);
}
