// The key of this device. Separate from api.ts, so that the worker does not load the texts of the page.
import { recall } from "./browserStorage";

/** The storage key of the device key. Another port of the host gets the cookie, but cannot read this. */
export const KEY = "tenax.key";
/** The headers that prove the device, besides the cookie. */
export const proof = (key = recall(KEY) ?? ""): Record<string, string> => (key === "" ? {} : { "Tenax-Key": key });
