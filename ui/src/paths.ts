// The paths of the page. The server serves the page at the root of a name, or below a path behind a proxy. Paths inside the page and of the
// API begin with "/" and do not know the path before them; `urlOf` adds it for the browser.

const { protocol, pathname } = new URL("..", String(import.meta.url));
/** The path of the first screen, with a slash at its end. Every script is in the folder assets below it. Unit tests load scripts from the disk. */
export const BASE = protocol === "file:" ? "/" : pathname;

/** The URL of a path, without the origin. */
export const urlOf = (path: string): string => BASE + path.slice(1);

/** The path inside the page, of the pathname of a URL. */
export const inside = (path: string): string => path.slice(BASE.length - 1);
