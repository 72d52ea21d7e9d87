// Rules: what tools may always do, and what they never may. List, add and remove them.
import { useEffect, useState } from "preact/hooks";
import { call } from "./api";
import { attempt, toast } from "./state";
import type { Rule } from "./types";
import { visible } from "./words";

type Ruled = { rules: Rule[] };
const said = (rule: Rule): string => visible(`${rule.tool} ${rule.touches}`);
const VERDICTS = { allow: "Allow", deny: "Deny" };

export function Rules() {
  const [rules, setRules] = useState<Rule[] | null>(null);
  const [tool, setTool] = useState("");
  const [touches, setTouches] = useState("");
  const change = (work: () => Promise<Ruled>, done = "") =>
    attempt(async () => {
      setRules((await work()).rules);
      if (done !== "") toast(done);
      return true;
    });
  useEffect(() => {
    const look = () => void change(() => call<Ruled>("GET", "/api/rules"));
    look();
    window.addEventListener("focus", look);
    return () => window.removeEventListener("focus", look);
  }, []);
  const remove = async (rule: Rule) => {
    await change(() => call<Ruled>("DELETE", `/api/rules?${new URLSearchParams({ ...rule })}`), "Rule removed.");
    document.querySelector<HTMLElement>(".rules li button, .rules input")?.focus();
  };
  const deny = async (event: Event) => {
    event.preventDefault();
    const rule: Rule = { verdict: "deny", tool: tool.trim(), touches: touches.trim() || "*" };
    if (!(await change(() => call<Ruled>("POST", "/api/rules", rule), `Rule added: deny ${said(rule)}`))) return;
    setTool("");
    setTouches("");
  };
  if (rules === null) return null;
  return (
    <section class="facts rules" aria-label="Rules">
      <h2>
        Rules <span class="meta">What tools may do without asking, and what they may never do. Deny overrides allow.</span>
      </h2>
      {rules.length === 0 ? (
        <p class="status">No rules yet. Tenax asks before it changes anything.</p>
      ) : (
        <ul>
          {rules.map((rule) => (
            <li key={`${rule.verdict} ${said(rule)}`} class="about" data-verdict={rule.verdict}>
              <span class="meta">
                {VERDICTS[rule.verdict]} <code>{said(rule)}</code>
              </span>
              <button type="button" class="quiet" aria-label={`Remove: ${VERDICTS[rule.verdict]} ${said(rule)}`} onClick={() => void remove(rule)}>
                Remove
              </button>
            </li>
          ))}
        </ul>
      )}
      <details class="fold">
        <summary>Add a deny rule</summary>
        <form class="connect" aria-label="Add a deny rule" onSubmit={(event) => void deny(event)}>
          <label>
            Tool <span class="meta">(for example write_file, or * for all tools)</span>
            <input required maxLength={2000} value={tool} onInput={(event) => setTool(event.currentTarget.value)} autocomplete="off" />
          </label>
          <label>
            Target <span class="meta">(for example secret/*; leave empty for everything)</span>
            <input maxLength={2000} value={touches} onInput={(event) => setTouches(event.currentTarget.value)} autocomplete="off" />
          </label>
          <div class="choices">
            <button type="submit" class="main">
              Add
            </button>
          </div>
        </form>
      </details>
    </section>
  );
}
