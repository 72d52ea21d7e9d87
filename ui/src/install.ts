// The service worker of the page, and the removal of all others.
import { BASE, urlOf } from "./paths";

const SCRIPT = urlOf("/service.js");
const SCOPE = location.origin + BASE;
/** The caches below the path of the page. At the root of a name, all caches of the name. */
const isOwnCache = (name: string): boolean => BASE === "/" || name.startsWith(`tenax-shell-${BASE.slice(1)}`);

function isOurs(registration: ServiceWorkerRegistration): boolean {
  const worker = registration.active ?? registration.waiting ?? registration.installing;
  return worker?.scriptURL === location.origin + SCRIPT && registration.scope === SCOPE;
}

/**
 * Remove the service workers that another program on this port may have left: they would see the code of a link and the key. Before a link
 * is used all are removed, also one that only has the address of ours. If the page is below a path of a shared name, the workers of other
 * paths stay. Returns true if some were removed; the page must then reload.
 */
export async function removeServiceWorkers(all: boolean): Promise<boolean> {
  if (!("serviceWorker" in navigator)) return false;
  try {
    const below = (await navigator.serviceWorker.getRegistrations()).filter((registration) => registration.scope.startsWith(SCOPE));
    const found = below.filter((registration) => all || !isOurs(registration));
    await Promise.all(found.map((registration) => registration.unregister()));
    if (all) await Promise.all((await caches.keys()).filter(isOwnCache).map((name) => caches.delete(name))); // the new worker must not find foreign files
    return found.length > 0;
  } catch {
    return false; // service workers are disabled
  }
}

/** Install our service worker when the page stands. Browsers have none on plain http, except on this machine. */
export function installWorker(): void {
  if (!("serviceWorker" in navigator) || !import.meta.env.PROD) return;
  const install = () => void navigator.serviceWorker.register(SCRIPT, { updateViaCache: "none" }).catch(() => undefined);
  if (document.readyState === "complete") install();
  else addEventListener("load", () => setTimeout(install));
}

/** Look for a new version of the service worker, after the server has changed. */
export async function updateWorker(): Promise<void> {
  const found = "serviceWorker" in navigator ? await navigator.serviceWorker.getRegistration(BASE) : undefined;
  await found?.update();
}
