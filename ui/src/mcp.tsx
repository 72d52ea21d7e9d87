// The servers whose tools are offered beside our own: how it stands with each, added, trusted and removed.
import { useEffect, useState } from "preact/hooks";
import { call } from "./api";
import { attempt, setup, toast } from "./state";
import { visible } from "./words";

type Offered = { name: string; effect: string; asks: boolean; description: string };
type Server = { name: string; where: string; trusted: boolean; state: "starting" | "ready" | "waiting"; error: string; tools: Offered[] };
type Servers = { servers: Server[] };
const LOOK_MS = 3000;
const STATES = { starting: "Connecting", ready: "Ready", waiting: "Not reached" };
const EFFECTS: Record<string, string> = { pure: "changes nothing", idempotent: "may be repeated", once: "never repeated" };
const wordsOf = (line: string): string[] => (line.match(/"[^"]*"|'[^']*'|\S+/g) ?? []).map((each) => each.replace(/^(["'])(.*)\1$/, "$2"));

export function McpServers() {
  const [servers, setServers] = useState<Server[] | null>(null);
  const [name, setName] = useState("");
  const [where, setWhere] = useState("");
  const [key, setKey] = useState("");
  const [code, setCode] = useState("");
  const remote = /^https?:\/\//.test(where.trim());
  const change = (work: () => Promise<Servers>, done: string) =>
    attempt(async () => {
      setServers((await work()).servers);
      toast(done);
      return true;
    });
  useEffect(() => {
    const look = () =>
      void call<Servers>("GET", "/api/mcp").then(
        (found) => setServers(found.servers),
        () => undefined, // what was known stays; it is asked again soon
      );
    look();
    const looking = setInterval(look, LOOK_MS);
    return () => clearInterval(looking);
  }, []);
  const trust = (each: Server) =>
    void change(() => call<Servers>("POST", "/api/mcp/trust", { name: each.name, trusted: !each.trusted }), each.trusted ? "No longer trusted." : "Trusted.");
  const remove = async (each: Server) => {
    await change(() => call<Servers>("DELETE", `/api/mcp?name=${encodeURIComponent(each.name)}`), "Removed.");
    document.querySelector<HTMLElement>(".mcp li button, .mcp summary")?.focus();
  };
  const add = async (event: Event) => {
    event.preventDefault();
    const server = { name: name.trim(), ...(remote ? { url: where.trim(), key: key.trim() } : { command: wordsOf(where), code: code.trim() }) };
    if (await change(() => call<Servers>("POST", "/api/mcp", server), "Its tools are there once it is connected."))
      for (const empty of [setName, setWhere, setKey, setCode]) empty("");
  };
  if (servers === null) return null;
  return (
    <section class="facts mcp" aria-label="MCP servers">
      <h2>
        MCP servers <span class="meta">Programs whose tools are offered too. Whatever they do asks, unless you trust them or a rule allows it.</span>
      </h2>
      <ul>
        {servers.map((each) => (
          <li key={each.name} data-state={each.state}>
            <p>
              <strong>{each.name}</strong> {STATES[each.state]} <code>{visible(each.where)}</code>
            </p>
            {each.error !== "" && <p class="status">{visible(each.error)}</p>}
            {each.tools.length > 0 && (
              <details class="fold">
                <summary>{each.tools.length === 1 ? "1 tool" : `${each.tools.length} tools`}</summary>
                <ul>
                  {each.tools.map((tool) => (
                    <li key={tool.name} title={visible(tool.description)}>
                      <code>{visible(tool.name)}</code> <span class="meta">{`${EFFECTS[tool.effect] ?? tool.effect}, ${tool.asks ? "asks" : "does not ask"}`}</span>
                    </li>
                  ))}
                </ul>
              </details>
            )}
            <div class="about">
              <span class="meta">{each.trusted ? "Trusted: what it says about its tools counts." : "Not trusted: every call asks."}</span>
              <button type="button" class="quiet" aria-label={`${each.trusted ? "Trust no longer" : "Trust"}: ${each.name}`} onClick={() => trust(each)}>
                {each.trusted ? "Trust no longer" : "Trust"}
              </button>
              <button type="button" class="quiet" aria-label={`Remove: ${each.name}`} onClick={() => void remove(each)}>
                Remove
              </button>
            </div>
          </li>
        ))}
      </ul>
      <details class="fold">
        <summary>Add a server</summary>
        <form class="connect" aria-label="Add a server" onSubmit={(event) => void add(event)}>
          <label>
            Name <span class="meta">(small letters, digits)</span>
            <input required maxLength={32} pattern="[a-z0-9]+([_\-][a-z0-9]+)*" value={name} onInput={(event) => setName(event.currentTarget.value)} autocomplete="off" />
          </label>
          <label>
            Command or address <span class="meta">(such as uvx mcp-server-time, or https://…; a command runs on this machine with your rights)</span>
            <input required maxLength={2000} value={where} onInput={(event) => setWhere(event.currentTarget.value)} autocomplete="off" />
          </label>
          {remote && (
            <label>
              Key <span class="meta">(if it wants one)</span>
              <input type="password" maxLength={2000} value={key} onInput={(event) => setKey(event.currentTarget.value)} autocomplete="off" />
            </label>
          )}
          {!remote && where.trim() !== "" && (
            <label>
              Code <span class="meta">(a command runs with your rights, so show that the terminal is yours: type <code>{setup.value?.terminal ?? "tenax"} code</code> there)</span>
              <input required maxLength={100} value={code} onInput={(event) => setCode(event.currentTarget.value)} autocomplete="off" spellcheck={false} />
            </label>
          )}
          <button type="submit" class="main">
            Add
          </button>
        </form>
      </details>
    </section>
  );
}
