// MCP servers: their status and tools; add, trust and remove a server.
import { useEffect, useState } from "preact/hooks";
import { call } from "./api";
import { attempt, setup, toast } from "./state";
import { visible } from "./words";

type Offered = { name: string; effect: string; asks: boolean; description: string };
type Server = { name: string; where: string; trusted: boolean; state: "starting" | "ready" | "waiting"; error: string; tools: Offered[] };
type Servers = { servers: Server[] };
const LOOK_MS = 3000;
const STATES = { starting: "Connecting", ready: "Ready", waiting: "Not connected" };
const EFFECTS: Record<string, string> = { pure: "read-only", idempotent: "safe to repeat", once: "not repeated" };
const wordsOf = (line: string): string[] => (line.match(/"[^"]*"|'[^']*'|\S+/g) ?? []).map((word) => word.replace(/^(["'])(.*)\1$/, "$2"));

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
        () => undefined, // keep the last result; the next poll may succeed
      );
    look();
    const looking = setInterval(look, LOOK_MS);
    return () => clearInterval(looking);
  }, []);
  const trust = (server: Server) =>
    void change(() => call<Servers>("POST", "/api/mcp/trust", { name: server.name, trusted: !server.trusted }), server.trusted ? "No longer trusted." : "Trusted.");
  const remove = async (server: Server) => {
    await change(() => call<Servers>("DELETE", `/api/mcp?name=${encodeURIComponent(server.name)}`), "Server removed.");
    document.querySelector<HTMLElement>(".mcp li button, .mcp summary")?.focus();
  };
  const add = async (event: Event) => {
    event.preventDefault();
    const server = { name: name.trim(), ...(remote ? { url: where.trim(), key: key.trim() } : { command: wordsOf(where), code: code.trim() }) };
    if (await change(() => call<Servers>("POST", "/api/mcp", server), "Server added. Its tools appear when it is connected."))
      for (const empty of [setName, setWhere, setKey, setCode]) empty("");
  };
  if (servers === null) return null;
  return (
    <section class="facts mcp" aria-label="MCP servers">
      <h2>
        MCP servers <span class="meta">Connect external tools. Each call needs approval unless you trust the server or a rule allows it.</span>
      </h2>
      <ul>
        {servers.map((server) => (
          <li key={server.name} data-state={server.state}>
            <p>
              <strong>{server.name}</strong> {STATES[server.state]} <code>{visible(server.where)}</code>
            </p>
            {server.error !== "" && <p class="status">{visible(server.error)}</p>}
            {server.tools.length > 0 && (
              <details class="fold">
                <summary>{server.tools.length === 1 ? "1 tool" : `${server.tools.length} tools`}</summary>
                <ul>
                  {server.tools.map((tool) => (
                    <li key={tool.name} title={visible(tool.description)}>
                      <code>{visible(tool.name)}</code> <span class="meta">{`${EFFECTS[tool.effect] ?? tool.effect}, ${tool.asks ? "asks first" : "does not ask"}`}</span>
                    </li>
                  ))}
                </ul>
              </details>
            )}
            <div class="about">
              <span class="meta">{server.trusted ? "Trusted: tools that it declares read-only run without asking." : "Not trusted: every call needs approval."}</span>
              <button type="button" class="quiet" aria-label={`${server.trusted ? "Untrust" : "Trust"}: ${server.name}`} onClick={() => trust(server)}>
                {server.trusted ? "Untrust" : "Trust"}
              </button>
              <button type="button" class="quiet" aria-label={`Remove: ${server.name}`} onClick={() => void remove(server)}>
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
            Name <span class="meta">(lowercase letters and digits)</span>
            <input required maxLength={32} pattern="[a-z0-9]+([_\-][a-z0-9]+)*" value={name} onInput={(event) => setName(event.currentTarget.value)} autocomplete="off" />
          </label>
          <label>
            Command or URL <span class="meta">(for example uvx mcp-server-time, or https://…; a command runs on this machine with your permissions)</span>
            <input required maxLength={2000} value={where} onInput={(event) => setWhere(event.currentTarget.value)} autocomplete="off" />
          </label>
          {remote && (
            <label>
              API key <span class="meta">(if the server needs one)</span>
              <input type="password" maxLength={2000} value={key} onInput={(event) => setKey(event.currentTarget.value)} autocomplete="off" />
            </label>
          )}
          {!remote && where.trim() !== "" && (
            <label>
              Code <span class="meta">(a command runs with your permissions, so confirm that it is you: run <code>{setup.value?.terminal ?? "tenax"} code</code> in a terminal)</span>
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
