// The browser's storage, which may be full or forbidden. Then the page works on, and forgets when it is left.

/** What it did not take. */
const held = new Map<string, string>();

export function recall(key: string): string | null {
  try {
    return held.get(key) ?? localStorage.getItem(key);
  } catch {
    return null;
  }
}

/** All keys that begin so. */
export function keysOf(prefix: string): string[] {
  try {
    return Object.keys(localStorage).filter((key) => key.startsWith(prefix));
  } catch {
    return [];
  }
}

/** The values of all keys that begin so. */
export const recallAll = (prefix: string): string[] => keysOf(prefix).flatMap((key) => localStorage.getItem(key) ?? []);

/** True if it is kept. */
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
