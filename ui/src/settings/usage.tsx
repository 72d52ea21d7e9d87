// Usage: tokens and money by day, model and conversation. The chart is also a table.
import { useState } from "preact/hooks";
import { call } from "../api";
import { useLook } from "../hooks";
import { urlOf } from "../paths";
import { follow, isOwner, pathOf, titleOf } from "../state";
import { formatNumber, locale, t } from "../text";
import { visible } from "../words";
import { Refusal, useSave } from "./fields";
import { Setting } from "./values";

interface Used { input: number; output: number; cost: number; unpriced: number }
interface Report {
  days: (Used & { day: string; model: string })[];
  total: Used;
  conversations: (Used & { conversation: string; title: string | null })[];
}
const SPANS = [7, 30, 90] as const;
const UNITS = ["tokens", "money"] as const;
type Unit = (typeof UNITS)[number];
const DAY_MS = 86_400_000;
const HEIGHT = 120;
const STEP = 10;
const money = (cost: number): string => formatNumber(cost, { style: "currency", currency: "USD", maximumFractionDigits: cost !== 0 && cost < 1 ? 4 : 2 });
const amount = (used: Used, unit: Unit): number => (unit === "money" ? used.cost : used.input + used.output);
const amountWords = (used: Used, unit: Unit): string => (unit === "money" ? money(used.cost) : t("usage.n_tokens", { n: amount(used, unit) }));
const dayWords = (day: string): string => new Date(day).toLocaleDateString(locale(), { day: "numeric", month: "short", timeZone: "UTC" });

/** The sums of rows with the same key, in the order of their first row. */
function sums<T extends Used>(rows: T[], key: (row: T) => string): Map<string, Used> {
  const found = new Map<string, Used>();
  for (const row of rows) {
    const sum = found.get(key(row)) ?? { input: 0, output: 0, cost: 0, unpriced: 0 };
    found.set(key(row), { input: sum.input + row.input, output: sum.output + row.output, cost: sum.cost + row.cost, unpriced: sum.unpriced + row.unpriced });
  }
  return found;
}

/** Every day of the span, also those without usage. */
function everyDay(report: Report, span: number): [string, Used][] {
  const used = sums(report.days, (row) => row.day);
  const days = Array.from({ length: span }, (_, n) => new Date(Date.now() - (span - 1 - n) * DAY_MS).toISOString().slice(0, 10));
  return days.map((day) => [day, used.get(day) ?? { input: 0, output: 0, cost: 0, unpriced: 0 }]);
}

export function Usage() {
  const [span, setSpan] = useState<number>(30);
  const [unit, setUnit] = useState<Unit>("tokens");
  const [report, setReport] = useState<Report | null>(null);
  const { error, save } = useSave();
  useLook(() => save(async () => setReport(await call<Report>("GET", `/api/usage?days=${span}`)), ""), [span]);
  const days = report === null ? [] : everyDay(report, span);
  return <>
    <div class="spans">
      <div class="choices">
        {SPANS.map((n) =>
          <button key={n} type="button" class="quiet" aria-pressed={span === n} onClick={() => setSpan(n)}>{t("usage.days", { n })}</button>)}
      </div>
      <div class="choices">
        {UNITS.map((name) =>
          <button key={name} type="button" class="quiet" aria-pressed={unit === name} onClick={() => setUnit(name)}>{t(`usage.${name}`)}</button>)}
      </div>
    </div>
    <Refusal text={error} />
    {report !== null && <>
      <p class="total">
        <strong>{amountWords(report.total, unit)}</strong>
        {report.total.unpriced > 0 && unit === "money" && <span class="meta"> {t("usage.unpriced", { n: report.total.unpriced })}</span>}
      </p>
      <Chart days={days} unit={unit} />
      <details class="fold">
        <summary>{t("usage.as_table")}</summary>
        <Table caption={t("usage.by_day")} head={t("usage.day")} rows={days.filter(([, used]) => used.input + used.output > 0).map(([day, used]) => [day, dayWords(day), used])} />
      </details>
      <h2>{t("usage.by_model")}</h2>
      <Table caption={t("usage.by_model")} head={t("settings.model")} rows={[...sums(report.days, (row) => row.model)].map(([model, used]) => [model, visible(model) || t("usage.unknown"), used])} />
      <h2>{t("usage.by_conversation")}</h2>
      <Table caption={t("usage.by_conversation")} head={t("usage.conversation")}
        rows={report.conversations.map((used) => [
          used.conversation,
          <a href={urlOf(pathOf(used.conversation))} onClick={follow}>{visible(titleOf(used))}</a>,
          used,
        ])}
      />
    </>}
    {isOwner.value && <><h2>{t("usage.limits")}</h2><Setting name="budget.day" /><Setting name="budget.conversation" /></>}
  </>;
}

/** Bars, one for each day. The table below has the same numbers. */
function Chart({ days, unit }: { days: [string, Used][]; unit: Unit }) {
  const most = Math.max(...days.map(([, used]) => amount(used, unit)));
  const top = days.find(([, used]) => amount(used, unit) === most)?.[1];
  const label = most === 0 || top === undefined ? t("usage.none") : t("usage.chart", { n: days.length, most: amountWords(top, unit) });
  return <figure class="chart">
    <svg role="img" aria-label={label} viewBox={`0 0 ${days.length * STEP} ${HEIGHT}`} preserveAspectRatio="none">
      {days.map(([day, used], n) => {
        const height = most === 0 ? 0 : (amount(used, unit) / most) * HEIGHT;
        return <g key={day} data-day={day} data-amount={amount(used, unit)}>
          <title>{`${dayWords(day)}: ${amountWords(used, unit)}`}</title>
          <rect class="hover" x={n * STEP} y={0} width={STEP} height={HEIGHT} />
          <rect x={n * STEP + 1} y={HEIGHT - height} width={STEP - 2} height={height} />
        </g>;
      })}
    </svg>
    <figcaption>
      {days[0] && <time dateTime={days[0][0]}>{dayWords(days[0][0])}</time>}
      <span>{most === 0 ? t("usage.none") : ""}</span>
      {days.length > 0 && <time dateTime={days.at(-1)![0]}>{dayWords(days.at(-1)![0])}</time>}
    </figcaption>
  </figure>;
}

type TableRow = [key: string, name: preact.ComponentChildren, used: Used];

function Table({ caption, head, rows }: { caption: string; head: string; rows: TableRow[] }) {
  if (rows.length === 0) return <p class="status">{t("usage.none")}</p>;
  return <div class="scrolls">
    <table>
      <caption class="hidden">{caption}</caption>
      <thead>
        <tr>
          <th scope="col">{head}</th>
          <th scope="col">{t("usage.input")}</th>
          <th scope="col">{t("usage.output")}</th>
          <th scope="col">{t("usage.cost")}</th>
        </tr>
      </thead>
      <tbody>
        {rows.map(([key, name, used]) => <tr key={key}>
          <th scope="row">{name}</th>
          <td>{formatNumber(used.input)}</td>
          <td>{formatNumber(used.output)}</td>
          <td>{used.cost === 0 && used.unpriced > 0 ? "–" : money(used.cost)}</td>
        </tr>)}
      </tbody>
    </table>
  </div>;
}
