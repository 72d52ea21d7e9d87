// What tools may do without asking, and what they never may: listed, added and taken back.
import { useEffect, useState } from "preact/hooks";
import { call } from "./api";
import { attempt, toast } from "./state";
import type { Rule } from "./types";
import { visible } from "./words";

type Ruled = { rules: Rule[] };
const said = (rule: Rule): string => visible(`${rule.tool} ${rule.touches}`);
const VERDICTS = { allow: "Always", deny: "Never" };

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
    await change(() => call<Ruled>("DELETE", `/api/rules?${new URLSearchParams({ ...rule })}`), "Taken back.");
    document.querySelector<HTMLElement>(".rules li button, .rules input")?.focus();
  };
  const deny = async (event: Event) => {
    event.preventDefault();
    const rule: Rule = { verdict: "deny", tool: tool.trim(), touches: touches.trim() || "*" };
    if (!(await change(() => call<Ruled>("POST", "/api/rules", rule), `From now on never: ${said(rule)}`))) return;
    setTool("");
    setTouches("");
  };
  if (rules === null) return null;
  return (
    <section class="facts rules" aria-label="Rules">
      <h2>
        Rules <span class="meta">What tools may do without asking, and what they never may. Never wins.</span>
      </h2>
      {rules.length === 0 ? (
        <p class="status">There are none: whatever changes something asks. “Always” in such a question makes one.</p>
      ) : (
        <ul>
          {rules.map((each) => (
            <li key={`${each.verdict} ${said(each)}`} class="about" data-verdict={each.verdict}>
              <span class="meta">
                {VERDICTS[each.verdict]} <code>{said(each)}</code>
              </span>
              <button type="button" class="quiet" aria-label={`Take back: ${VERDICTS[each.verdict]} ${said(each)}`} onClick={() => void remove(each)}>
                Take back
              </button>
            </li>
          ))}
        </ul>
      )}
      <details class="fold">
        <summary>Forbid something</summary>
        <form class="connect" aria-label="Forbid something" onSubmit={(event) => void deny(event)}>
          <label>
            Tool <span class="meta">(such as write_file, or * for all)</span>
            <input required maxLength={2000} value={tool} onInput={(event) => setTool(event.currentTarget.value)} autocomplete="off" />
          </label>
          <label>
            What it touches <span class="meta">(such as secret/*; empty for everything)</span>
            <input maxLength={2000} value={touches} onInput={(event) => setTouches(event.currentTarget.value)} autocomplete="off" />
          </label>
          <div class="choices">
            <button type="submit" class="main">
              Never allow this
            </button>
          </div>
        </form>
      </details>
    </section>
  );
}
