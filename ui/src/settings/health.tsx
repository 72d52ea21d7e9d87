// Health: what is wrong with the installation, and the commands that solve it.
import { useEffect, useState } from "preact/hooks";
import { call } from "../api";
import { Icon } from "../icon";
import { copyText } from "../prose";
import { attempt, toast } from "../state";
import { locale, t } from "../text";
import { bytes, visible } from "../words";

interface Issue { level: "problem" | "warning"; text: string; command: string }
interface Model { label: string; state: "answers" | "key" | "away" | "refused"; detail: string }
interface Owed {
  approvals: number;
  waiting: number;
  failed: number;
  memory: { provider: string; conversations: number; letters: number }[];
  spools: string[];
}
interface Found {
  version: string;
  issues: Issue[];
  models: Model[];
  backup: { name: string; at: string; error: string };
  disks: { path: string; free: number }[];
  owed: Owed;
  engine: string;
  failover: string;
}
const CLOCK = { dateStyle: "medium", timeStyle: "short" } as const;

export function Health() {
  const [found, setFound] = useState<Found | null>(null);
  const [running, setRunning] = useState(true);
  const look = async (models: boolean) => {
    setRunning(true);
    const latest = await attempt(() => call<Found>("GET", `/api/findings?models=${models}`));
    if (latest !== undefined) setFound(latest);
    setRunning(false);
  };
  useEffect(() => void look(false), []);
  return <>
    <h2>{t("data.health")}</h2>
    <p class="meta">{t("data.health_about")}</p>
    <div role="status" class="proof-line">
      {found === null && <p class="status">{t("data.health_checking")}</p>}
      {found !== null && found.issues.length === 0 && <p class="good"><Icon name="shield" />{t("data.health_fine")}</p>}
    </div>
    {found !== null && found.issues.length > 0 && <ul class="issues" aria-label={t("data.health_issues")}>
      {found.issues.map((issue) => <IssueItem key={issue.text} issue={issue} />)}
    </ul>}
    {found !== null && <Facts found={found} />}
    <button type="button" disabled={running} onClick={() => void look(true)}>{t(running ? "data.health_checking" : "data.health_check")}</button>
  </>;
}

function IssueItem({ issue }: { issue: Issue }) {
  const command = visible(issue.command);
  const copy = async () => toast(t((await copyText(issue.command)) ? "data.health_copied" : "common.not_copied"));
  return <li>
    <p class={issue.level === "problem" ? "bad" : "warn"}>
      <Icon name="alert" label={t(`data.health_${issue.level}`)} />
      <span>{visible(issue.text)}</span>
    </p>
    {command !== "" && <div class="command">
      <code>{command}</code>
      <button type="button" class="quiet" aria-label={t("data.health_copy_of", { command })} onClick={() => void copy()}>
        <Icon name="copy" />{t("data.health_copy")}
      </button>
    </div>}
  </li>;
}

function Facts({ found }: { found: Found }) {
  return <dl class="pairs" aria-label={t("data.health_facts")}>
    <dt>{t("data.health_version")}</dt><dd>{visible(found.version)}</dd>
    <dt>{t("data.health_store")}</dt><dd>{visible(found.engine)}</dd>
    {found.failover !== "" && <><dt>{t("data.health_failover")}</dt><dd>{visible(found.failover)}</dd></>}
    <dt>{t("data.health_models")}</dt><dd><Lines lines={modelLines(found.models)} /></dd>
    <dt>{t("data.health_backup")}</dt><dd>{backupLine(found.backup)}</dd>
    <dt>{t("data.health_owed")}</dt><dd><Lines lines={owedLines(found.owed)} /></dd>
    <dt>{t("data.health_disk")}</dt>
    <dd><Lines lines={found.disks.map((disk) => t("data.health_disk_at", { free: bytes(disk.free), path: visible(disk.path) }))} /></dd>
  </dl>;
}

function Lines({ lines }: { lines: string[] }) {
  return <>{lines.map((line) => <span class="line" key={line}>{line}</span>)}</>;
}

function modelLines(models: Model[]): string[] {
  if (models.length === 0) return [t("data.health_models_unasked")];
  return models.map((model) => t(`data.health_model_${model.state}`, { label: visible(model.label) }));
}

function backupLine(backup: Found["backup"]): string {
  if (backup.error !== "") return t("data.health_backup_bad");
  if (backup.name === "") return t("data.health_backup_none");
  return t("data.health_backup_at", { time: new Date(backup.at).toLocaleString(locale(), CLOCK) });
}

function owedLines(owed: Owed): string[] {
  const lines: string[] = [];
  if (owed.approvals > 0) lines.push(t("data.health_approvals", { n: owed.approvals }));
  if (owed.waiting > 0) lines.push(t("data.health_waiting", { n: owed.waiting }));
  if (owed.failed > 0) lines.push(t("data.health_failed", { n: owed.failed }));
  for (const memory of owed.memory) {
    const provider = visible(memory.provider);
    if (memory.conversations > 0) lines.push(t("data.health_memory", { n: memory.conversations, provider }));
    if (memory.letters > 0) lines.push(t("data.health_letters", { n: memory.letters, provider }));
  }
  if (owed.spools.length > 0) lines.push(t("data.health_spools", { n: owed.spools.length }));
  return lines.length > 0 ? lines : [t("data.health_owed_nothing")];
}
