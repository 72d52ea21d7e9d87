// One event stream for all tabs. The hub lives in a SharedWorker, or in the page where there is none.
// It holds the rows of watched and recently watched conversations, so that a second tab needs no second stream.
import { Feed } from "./feed";
import { Rows } from "./rows";
import type { Connection, Frame, FromHub, Lacks, Listed, ToHub } from "./types";

const KEPT_MAX = 6;
const WATCHED_MAX = 16;
interface Held { rows: Rows; /** False until the first snapshot has arrived. */ ready: boolean; at: string }
export interface Port { post(message: FromHub): void }

export class Hub {
  private tabs = new Map<Port, string | null>();
  private held = new Map<string, Held>();
  private list: Map<string, Listed> | null = null;
  private lacks: Lacks | null = null;
  /** The last frames of the preferences and the projects, by type. */
  private personal = new Map<string, Frame>();
  private state: Connection = "connecting";
  private feed: Feed;

  constructor(get?: typeof fetch) {
    const events = { frame: (frame: Frame) => this.take(frame), connection: (state: Connection) => this.told(state) };
    this.feed = new Feed(events, get);
  }

  private join(port: Port): void {
    this.tabs.set(port, null);
    port.post({ type: "connection", state: this.state });
    if (this.list !== null) port.post({ type: "frame", frame: { type: "list", conversations: [...this.list.values()], gone: [], reset: true } });
    for (const frame of this.personal.values()) port.post({ type: "frame", frame });
    if (this.lacks !== null) port.post({ type: "frame", frame: { type: "store", lacks: this.lacks } });
    if (this.tabs.size === 1 || this.state !== "live") this.feed.open();
  }

  hear(port: Port, message: ToHub): void {
    if (message.type === "join" || message.type === "key") this.learn(message.key);
    if (message.type === "join") this.join(port);
    else if (message.type === "key") return;
    else if (message.type === "bye") {
      this.tabs.delete(port);
      if (this.tabs.size === 0) this.feed.close();
      else this.rewatch();
    } else if (message.type === "now") {
      if (this.state !== "live") this.feed.open();
    } else if (message.type === "again") {
      this.forget(message.conversation);
      this.rewatch();
    } else {
      this.tabs.set(port, message.conversation);
      const held = this.held.get(message.conversation ?? "");
      if (message.conversation !== null && held?.ready === true) this.give(port, message.conversation, held);
      this.rewatch();
    }
  }

  /** Take the key from a tab: at the start and after every sign-in. */
  private learn(key: string): void {
    if (key === this.feed.key) return;
    this.feed.key = key;
    this.list = null; // another user may have signed in
    this.lacks = null;
    this.personal.clear();
    this.held.clear();
    this.feed.startOver();
    if (this.tabs.size > 0) this.feed.open();
  }

  private give(port: Port, conversation: string, { rows, at }: Held): void {
    const reached = this.feed.cursor.numbers.get(conversation) || at; // `at` is the position when it was last watched
    const frame: Frame = { type: "rows", conversation, at: Number(reached), ...rows.page };
    port.post({ type: "frame", frame });
  }

  private forget(conversation: string): void {
    this.held.delete(conversation);
    this.feed.cursor.numbers.delete(conversation);
  }

  /** Reopen the stream if the set of watched conversations has changed. */
  private rewatch(): void {
    const wanted = new Set([...this.tabs.values()].filter((id) => id !== null).slice(-WATCHED_MAX));
    const numbers = this.feed.cursor.numbers;
    let other = false;
    for (const [id, at] of [...numbers]) {
      if (wanted.has(id)) continue;
      const held = this.held.get(id);
      if (held !== undefined) held.at = at;
      numbers.delete(id);
      other = true;
    }
    for (const id of wanted) {
      if (numbers.has(id)) continue;
      const held = this.held.get(id) ?? { rows: new Rows(), ready: false, at: "" };
      this.held.delete(id); // and insert it at the end: the map is ordered by last use
      this.held.set(id, held);
      numbers.set(id, held.ready ? held.at : "");
      other = true;
    }
    for (const id of this.held.keys()) if (this.held.size > KEPT_MAX && !wanted.has(id)) this.held.delete(id);
    if (other) this.feed.open();
  }

  private told(state: Connection): void {
    if (state === this.state) return;
    this.state = state;
    for (const port of this.tabs.keys()) port.post({ type: "connection", state });
  }

  private take(frame: Frame): void {
    if (frame.type === "list") this.takeList(frame);
    else if (frame.type === "preferences" || frame.type === "projects") this.personal.set(frame.type, frame);
    else if (frame.type === "store") this.lacks = frame.lacks;
    else if (frame.type === "hello") this.lacks = null; // the server reports it again if it still applies
    else if (frame.type === "rows") {
      const held = this.held.get(frame.conversation);
      if (held === undefined) return;
      held.rows.snapshot(frame);
      held.ready = true;
    } else if (frame.type === "changes") {
      try {
        this.held.get(frame.conversation)?.rows.apply(frame.changes);
      } catch {
        this.forget(frame.conversation);
        this.rewatch();
        return;
      }
    } else if (frame.type === "gone") this.held.delete(frame.conversation);
    for (const [port, watched] of this.tabs) if (!("conversation" in frame) || frame.conversation === watched) port.post({ type: "frame", frame });
  }

  private takeList(frame: { conversations: Listed[]; gone: string[]; reset: boolean }): void {
    if (this.list === null || frame.reset) this.list = new Map();
    for (const conversation of frame.conversations) this.list.set(conversation.id, conversation);
    for (const id of frame.gone) this.list.delete(id);
  }
}
