// Tools: web search, the folder, and MCP servers with their status and tools; add, trust and remove a server.
import { useState } from "preact/hooks";
import { Field } from "../form";
import { setup } from "../state";
import { t, type TextKey, tx } from "../text";
import { visible } from "../words";
import { AddForm, RemoveButton, useEntries } from "./entries";
import { Setting } from "./values";

type Offered = { name: string; effect: string; asks: boolean; description: string };
type Server = { name: string; where: string; trusted: boolean; state: "starting" | "ready" | "waiting"; error: string; tools: Offered[] };
const LOOK_MS = 3000;
const EFFECTS: Record<string, TextKey> = { pure: "mcp.pure", idempotent: "mcp.idempotent", once: "mcp.once" };
/** "read-only, asks first" */
const toolWords = (tool: Offered): string => {
  const effect = EFFECTS[tool.effect];
  return t(tool.asks ? "mcp.asks" : "mcp.does_not_ask", { effect: effect === undefined ? tool.effect : t(effect) });
};
const wordsOf = (line: string): string[] => (line.match(/"[^"]*"|'[^']*'|\S+/g) ?? []).map((word) => word.replace(/^(["'])(.*)\1$/, "$2"));

export function Tools() {
  return <>
    <McpServers />
    <h2>{t("tools.search")}</h2>
    <Setting name="search.searxng" />
    <Setting name="search.brave" />
    <Setting name="search.tavily" />
    <h2>{t("tools.files")}</h2>
    <Setting name="tools.folder" />
  </>;
}

function McpServers() {
  const { found: servers, change } = useEntries<Server>("/api/mcp", "servers", LOOK_MS);
  const [name, setName] = useState("");
  const [where, setWhere] = useState("");
  const [key, setKey] = useState("");
  const [code, setCode] = useState("");
  const remote = /^https?:\/\//.test(where.trim());
  const trust = ({ name, trusted }: Server) => void change("POST", "/trust", t(trusted ? "mcp.untrusted_now" : "mcp.trusted_now"), { name, trusted: !trusted });
  const remove = (server: Server) => change("DELETE", `?name=${encodeURIComponent(server.name)}`, t("mcp.removed"));
  const add = async () => {
    const server = { name: name.trim(), ...(remote ? { url: where.trim(), key: key.trim() } : { command: wordsOf(where), code: code.trim() }) };
    if (await change("POST", "", t("mcp.added"), server)) for (const empty of [setName, setWhere, setKey, setCode]) empty("");
  };
  if (servers === null) return null;
  const codeHint = tx("mcp.code_hint", { command: <code>{`${setup.value?.terminal ?? "tenax"} code`}</code> });
  return <section class="facts mcp" aria-label={t("mcp.title")}>
    <h2>{t("mcp.title")} <span class="meta">{t("mcp.about")}</span></h2>
    <ul>
      {servers.map((server) => <li key={server.name} data-state={server.state}>
        <p><strong>{server.name}</strong> {t(`mcp.${server.state}`)} <code>{visible(server.where)}</code></p>
        {server.error !== "" && <p class="status">{visible(server.error)}</p>}
        {server.tools.length > 0 && <details class="fold">
          <summary>{t("mcp.tools", { n: server.tools.length })}</summary>
          <ul>
            {server.tools.map((tool) =>
              <li key={tool.name} title={visible(tool.description)}><code>{visible(tool.name)}</code> <span class="meta">{toolWords(tool)}</span></li>)}
          </ul>
        </details>}
        <div class="about">
          <span class="meta">{t(server.trusted ? "mcp.is_trusted" : "mcp.not_trusted")}</span>
          <button type="button" class="quiet" aria-label={t(server.trusted ? "mcp.untrust_named" : "mcp.trust_named", { name: server.name })} onClick={() => trust(server)}>
            {t(server.trusted ? "mcp.untrust" : "mcp.trust")}
          </button>
          <RemoveButton label={t("common.remove_named", { name: server.name })} act={() => remove(server)} next=".mcp li button, .mcp summary" />
        </div>
      </li>)}
    </ul>
    <AddForm title={t("mcp.add")} add={add}>
      <Field label={t("mcp.name")} hint={t("mcp.name_hint")} required maxLength={32} pattern="[a-z0-9]+([_\-][a-z0-9]+)*" value={name} put={setName} />
      <Field label={t("mcp.where")} hint={t("mcp.where_hint")} required maxLength={2000} value={where} put={setWhere} />
      {remote && <Field label={t("settings.api_key")} hint={t("mcp.key_hint")} type="password" maxLength={2000} value={key} put={setKey} />}
      {!remote && where.trim() !== "" &&
        <Field label={t("mcp.code")} hint={codeHint} required maxLength={100} value={code} put={setCode} spellcheck={false} />}
    </AddForm>
  </section>;
}
