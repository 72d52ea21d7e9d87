// The SharedWorker: runs the hub, and connects the ports of tabs.
import { Hub, type Port } from "./hub";
import type { FromHub, ToHub } from "./types";

const hub = new Hub();

self.addEventListener("connect", (event) => {
  const channel = (event as MessageEvent).ports[0];
  if (channel === undefined) return;
  const port: Port = { post: (message: FromHub) => channel.postMessage(message) };
  channel.onmessage = (heard: MessageEvent<ToHub>) => hub.hear(port, heard.data);
});
