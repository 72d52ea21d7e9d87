// Data: export everything, import files of other programs, verify the store, and where the files are.
import { useEffect, useState } from "preact/hooks";
import { call } from "../api";
import { FORMATS } from "../commands";
import { Icon } from "../icon";
import { Download } from "../signed";
import { attempt, isOwner } from "../state";
import { locale, t, tx } from "../text";
import { visible } from "../words";
import { Health } from "./health";
import { Import } from "./import";
import { answer, Setting } from "./values";

interface Verified { ok: boolean; conversations: number; events: number; at: string; problems: string[] }
const LOOK_MS = 2000;
const CLOCK = { dateStyle: "medium", timeStyle: "short" } as const;

export function Data() {
  const settings = answer.value;
  return <>
    <h2>{t("data.export")}</h2>
    <p class="meta">{t("data.export_about")}</p>
    <div class="choices">
      {FORMATS.map((format) => <Download key={format} class="button" path={`/api/export?format=${format}`} name="">
        <Icon name="download" />{t(`data.export_${format}`)}
      </Download>)}
    </div>
    <Import />
    {isOwner.value && <Health />}
    <Integrity />
    {isOwner.value && <>
      <h2>{t("data.backups")}</h2>
      <p class="meta">{t("data.backups_about")}</p>
      <Setting name="backup.every" /><Setting name="backup.folder" /><Setting name="backup.keep" />
    </>}
    {settings !== null && <>
      <h2>{t("data.files")}</h2>
      <dl class="pairs">
        <dt>{t("data.settings_file")}</dt><dd><code>{visible(settings.file)}</code></dd>
        <dt>{t("data.folder")}</dt><dd><code>{visible(settings.data)}</code></dd>
      </dl>
    </>}
  </>;
}

function Integrity() {
  const [last, setLast] = useState<Verified | null>(null);
  const [running, setRunning] = useState(true);
  useEffect(() => {
    const look = () => attempt(async () => {
      const found = await call<{ last: Verified | null; running: boolean }>("GET", "/api/verify");
      setLast(found.last);
      setRunning(found.running);
    });
    void look();
    const timer = setInterval(() => running && void look(), LOOK_MS);
    return () => clearInterval(timer);
  }, [running]);
  const verify = async () => {
    setRunning(true);
    const found = await attempt(() => call<Verified>("POST", "/api/verify"));
    if (found !== undefined) setLast(found);
    setRunning(false);
  };
  return <>
    <h2>{t("data.integrity")}</h2>
    <p class="meta">{t("data.integrity_about")}</p>
    <div role="status" class="proof-line">
      {last === null ? <p class="status">{t(running ? "data.verifying" : "data.never")}</p> : <>
        <p class={last.ok ? "good" : "bad"}><Icon name={last.ok ? "shield" : "alert"} />{t(last.ok ? "data.verified" : "data.problems")}</p>
        <p class="meta">
          <span>
            {tx("data.verified_at", {
              time: <time dateTime={last.at}>{new Date(last.at).toLocaleString(locale(), CLOCK)}</time>,
              events: t("data.events", { n: last.events }),
              conversations: t("data.conversations", { n: last.conversations }),
            })}
          </span>
        </p>
        {last.problems.length > 0 && <ul>{last.problems.map((problem) => <li key={problem}>{visible(problem)}</li>)}</ul>}
      </>}
    </div>
    <button type="button" disabled={running} onClick={() => void verify()}>{t(running ? "data.verifying" : "data.verify")}</button>
  </>;
}
