/** A chart of what each day of a month has used. Screen readers get its summary; the table behind it has every number. */
import { useId } from "react";

import type { UsageRow } from "@turnkeep/client";
import { costInWords, countInWords, dayInWords, monthInWords, words } from "../../words";
import { useIsNarrow } from "../useScreen";

export type Measure = "messages" | "tokens" | "cost";

export function measured(row: UsageRow, measure: Measure): number {
  if (measure === "messages") return row.messages;
  return measure === "tokens" ? row.input_tokens + row.output_tokens : (row.cost ?? 0);
}

export const writtenAs = (value: number, measure: Measure): string => (measure === "cost" ? costInWords(value) : countInWords(value));

const WIDE = 720;
/** On a phone the chart is drawn smaller, so that its text is not. */
const NARROW = 340;
const HEIGHT = 180;
const LEFT = 56;
const TOP = 12;
const BOTTOM = 22;

export function DayChart({ month, rows, measure }: { month: string; rows: readonly UsageRow[]; measure: Measure }) {
  const id = useId();
  const [year = 0, number = 1] = month.split("-").map(Number);
  const count = new Date(Date.UTC(year, number, 0)).getUTCDate();
  const values = new Map(rows.map((row) => [row.group, measured(row, measure)]));
  const days = Array.from({ length: count }, (_, at) => {
    const day = `${month}-${String(at + 1).padStart(2, "0")}`;
    return { day, value: values.get(day) ?? 0 };
  });
  const total = days.reduce((sum, one) => sum + one.value, 0);
  const peak = days.reduce((best, one) => (one.value > best.value ? one : best), days[0] ?? { day: month, value: 0 });
  const top = roundUp(peak.value, measure);
  const width = useIsNarrow() ? NARROW : WIDE;
  const step = (width - LEFT) / count;
  const y = (value: number) => TOP + (HEIGHT - TOP - BOTTOM) * (1 - (top > 0 ? value / top : 0));
  return (
    <svg className="chart" viewBox={`0 0 ${width} ${HEIGHT}`} role="img" aria-labelledby={`${id}-title`} aria-describedby={`${id}-text`}>
      <title id={`${id}-title`}>{words.usage.byDay(words.usage.measures[measure], monthInWords(month))}</title>
      <desc id={`${id}-text`}>{total > 0 ? words.usage.chart(writtenAs(total, measure), writtenAs(peak.value, measure), dayInWords(peak.day)) : words.usage.none}</desc>
      {[0, top / 2, top].map((value, at) => (
        <g key={at}>
          <line className="chart-grid" x1={LEFT} x2={width} y1={y(value)} y2={y(value)} />
          <text x={LEFT - 8} y={y(value) + 4} textAnchor="end">
            {writtenAs(value, measure)}
          </text>
        </g>
      ))}
      {days.map(({ day, value }, at) => (
        <g key={day}>
          <rect className={value > 0 ? "chart-bar" : "chart-bar is-none"} data-day={day} x={LEFT + at * step + step * 0.1} y={value > 0 ? Math.min(y(value), y(0) - 2) : y(0) - 1} width={step * 0.8} height={value > 0 ? Math.max(y(0) - y(value), 2) : 1} rx="2">
            <title>{`${dayInWords(day)}: ${writtenAs(value, measure)}`}</title>
          </rect>
          {(at === 0 || (at + 1) % 5 === 0) && (
            <text x={LEFT + at * step + step / 2} y={HEIGHT - 6} textAnchor="middle">
              {countInWords(at + 1)}
            </text>
          )}
        </g>
      ))}
    </svg>
  );
}

/** The end of the scale: the first of 1, 2, 4, 10, 20, 40 … that the largest value does not exceed. */
function roundUp(value: number, measure: Measure): number {
  if (value <= 0) return measure === "cost" ? 1 : 2;
  const power = 10 ** Math.floor(Math.log10(value));
  const found = ([1, 2, 4, 10].find((factor) => factor * power >= value) ?? 10) * power;
  return measure === "cost" ? found : Math.max(2, found);
}
