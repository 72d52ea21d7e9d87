// localStorage, which may be full or forbidden. Then values are kept in memory until the page is closed.

/** The values that localStorage did not accept. */
const held = new Map<string, string>();

export function recall(key: string): string | null {
  try { return held.get(key) ?? localStorage.getItem(key); } catch { return null; }
}

/** All keys with this prefix. */
export function keysOf(prefix: string): string[] {
  try { return Object.keys(localStorage).filter((key) => key.startsWith(prefix)); } catch { return []; }
}

/** The values of all keys with this prefix. */
export const recallAll = (prefix: string): string[] => keysOf(prefix).flatMap((key) => localStorage.getItem(key) ?? []);

/** Store a value; an empty one deletes the key. Returns false if localStorage did not accept it. */
export function remember(key: string, value: string): boolean {
  held.delete(key);
  try {
    if (value === "") localStorage.removeItem(key);
    else localStorage.setItem(key, value);
    return true;
  } catch {
    held.set(key, value);
    return false;
  }
}
