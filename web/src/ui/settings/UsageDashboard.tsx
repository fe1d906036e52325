/** What a month has used by day, person, agent and model; how far limits are used; and the turns behind it. */
import { useCallback, useEffect, useMemo, useState } from "react";

import type { LimitUse, MonthlyUsage, UsageRow, UsageTurn } from "@turnkeep/client";
import { saveText } from "../../effects/export";
import { usage, usageCsv, type UsageFilter, type UsageGroup, usageTurns } from "../../effects/requests";
import { costInWords, countInWords, dayInWords, durationInWords, monthInWords, shareInWords, sizeInWords, timeInWords, words } from "../../words";
import { useSelect, useServices } from "../context";
import { SelectField } from "../forms";
import { Icon } from "../Icon";
import { ColumnHeads } from "../ColumnHeads";
import { LoadStatus, MoreButton, useLoaded, useLoadedList } from "../requestState";
import { RouteLink } from "../RouteLink";
import { DayChart, type Measure, measured, writtenAs } from "./UsageChart";

const MONTHS = 12;
const MEASURES: readonly Measure[] = ["messages", "tokens", "cost"];
type Loaded = Record<"day" | "model" | "agent" | "user", MonthlyUsage | null>;

/** `saves` counts how often the limits were saved. */
export function UsageDashboard({ isAdmin, thisMonth, saves }: { isAdmin: boolean; thisMonth: string; saves: number }) {
  const [month, setMonth] = useState(thisMonth);
  const [user, setUser] = useState("");
  const [agent, setAgent] = useState("");
  const [model, setModel] = useState("");
  const [day, setDay] = useState("");
  const [chosen, setMeasure] = useState<Measure>("messages");
  const agents = useSelect((state) => state.agents);
  const only: UsageFilter = useMemo(() => ({ month, user: user || null, agent_id: agent || null, model: model || null }), [month, user, agent, model]);
  const loaded = useLoaded(useCallback(() => load(only, isAdmin), [only, isAdmin]));
  const { reload } = loaded;
  useEffect(() => {
    if (saves > 0) reload();
  }, [saves, reload]);
  // The choices stay those of the whole month, whatever is chosen.
  const all = useLoaded(useCallback(() => load({ month }, isAdmin), [month, isAdmin]));
  const { value } = loaded;
  const names: Names = { agents: new Map(agents.map((one) => [one.id, one.name ?? one.id])) };
  const days = value?.day?.rows ?? [];
  const hasCost = days.some((row) => typeof row.cost === "number");
  const measure = chosen === "cost" && !hasCost ? "messages" : chosen;
  const choose = (set: (value: string) => void) => (next: string) => {
    set(next);
    setDay("");
  };
  return (
    <>
      <section className="card" aria-busy={value === null}>
        <h2>{isAdmin ? words.usage.everyone : words.usage.yours}</h2>
        <div className="filters">
          <SelectField label={words.usage.month} value={month} onChange={choose(setMonth)}>
            {lastMonths(thisMonth).map((one) => (
              <option key={one} value={one}>
                {monthInWords(one)}
              </option>
            ))}
          </SelectField>
          {isAdmin && <GroupChoice label={words.usage.person} all={words.usage.allPeople} group="user" rows={all.value?.user?.rows} names={names} value={user} onChange={choose(setUser)} />}
          <GroupChoice label={words.usage.agent} all={words.usage.allAgents} group="agent" rows={all.value?.agent?.rows} names={names} value={agent} onChange={choose(setAgent)} />
          <GroupChoice label={words.usage.model} all={words.usage.allModels} group="model" rows={all.value?.model?.rows} names={names} value={model} onChange={choose(setModel)} />
          <SelectField label={words.usage.measure} value={measure} onChange={(next) => setMeasure(next as Measure)}>
            {MEASURES.filter((one) => one !== "cost" || hasCost).map((one) => (
              <option key={one} value={one}>
                {words.usage.measures[one]}
              </option>
            ))}
          </SelectField>
        </div>
        {value?.day ? <Month used={value.day} month={month} measure={measure} only={only} hasCost={hasCost} names={names} /> : <LoadStatus error={loaded.error} onRetry={loaded.reload} />}
      </section>
      {value &&
        (["user", "agent", "model"] as const).map((group) => {
          const used = value[group];
          return used && used.rows?.length ? <Groups key={group} group={group} rows={used.rows} measure={measure} only={only} hasCost={hasCost} names={names} /> : null;
        })}
      {isAdmin && value?.day?.limits?.length ? (
        <section className="card">
          <h2>{words.usage.limits}</h2>
          <LimitList limits={value.day.limits} />
        </section>
      ) : null}
      <Turns only={only} day={day} days={days} onDay={setDay} showsUsers={isAdmin} hasCost={hasCost} />
    </>
  );
}

async function load(only: UsageFilter, isAdmin: boolean): Promise<Loaded> {
  const [day, model, agent, user] = await Promise.all([usage(only, "day"), usage(only, "model"), usage(only, "agent"), isAdmin ? usage(only, "user") : null]);
  return { day, model, agent, user };
}

interface Names {
  readonly agents: ReadonlyMap<string, string>;
}

/** A group as people call it. An agent or a user that is gone has only its id. */
function nameOf(row: UsageRow, group: UsageGroup, names: Names): string {
  if (group === "user") return row.user ? (row.user.name ?? row.user.external_id) : row.group ? words.usage.gone : words.usage.noGroup;
  if (!row.group) return words.usage.noGroup;
  if (group === "agent") return names.agents.get(row.group) ?? row.group;
  return group === "day" ? dayInWords(row.group) : row.group;
}

function GroupChoice({ label, all, group, rows, names, value, onChange }: { label: string; all: string; group: UsageGroup; rows: readonly UsageRow[] | undefined; names: Names; value: string; onChange: (value: string) => void }) {
  const offered = (rows ?? []).filter((row): row is UsageRow & { group: string } => row.group !== null && (group !== "user" || !!row.user));
  return (
    <SelectField label={label} value={value} onChange={onChange}>
      <option value="">{all}</option>
      {offered.map((row) => (
        <option key={row.group} value={row.group}>
          {nameOf(row, group, names)}
        </option>
      ))}
    </SelectField>
  );
}

function Month({ used, month, measure, only, hasCost, names }: { used: MonthlyUsage; month: string; measure: Measure; only: UsageFilter; hasCost: boolean; names: Names }) {
  const rows = [...(used.rows ?? [])].sort((a, b) => (a.group ?? "").localeCompare(b.group ?? ""));
  const unpriced = hasCost ? rows.reduce((sum, row) => sum + (row.unpriced_messages ?? 0), 0) : 0;
  return (
    <>
      <dl className="figures">
        <div>
          <dt>{words.settings.messages}</dt>
          <dd>{countInWords(rows.reduce((sum, row) => sum + row.messages, 0))}</dd>
        </div>
        <div>
          <dt>{words.settings.inputTokens}</dt>
          <dd>{countInWords(rows.reduce((sum, row) => sum + row.input_tokens, 0))}</dd>
        </div>
        <div>
          <dt>{words.settings.outputTokens}</dt>
          <dd>{countInWords(rows.reduce((sum, row) => sum + row.output_tokens, 0))}</dd>
        </div>
        {hasCost && (
          <div>
            <dt>{words.usage.cost}</dt>
            <dd>{costInWords(rows.reduce((sum, row) => sum + (row.cost ?? 0), 0))}</dd>
          </div>
        )}
      </dl>
      <DayChart month={month} rows={rows} measure={measure} />
      {unpriced > 0 && <p className="faint">{words.usage.unpriced(unpriced)}</p>}
      <details>
        <summary>{words.usage.asTable}</summary>
        <GroupTable group="day" rows={rows} measure={measure} hasCost={hasCost} names={names} />
      </details>
      <CsvButton group="day" only={only} />
    </>
  );
}

function Groups({ group, rows, measure, only, hasCost, names }: { group: "user" | "agent" | "model"; rows: readonly UsageRow[]; measure: Measure; only: UsageFilter; hasCost: boolean; names: Names }) {
  const sorted = [...rows].sort((a, b) => measured(b, measure) - measured(a, measure));
  return (
    <section className="card">
      <div className="usage-head">
        <h2>{words.usage.groups[group]}</h2>
        <CsvButton group={group} only={only} />
      </div>
      <GroupTable group={group} rows={sorted} measure={measure} hasCost={hasCost} names={names} />
    </section>
  );
}

function columnOf(group: UsageGroup): string {
  if (group === "source") return words.usage.groups.source;
  return { user: words.usage.person, agent: words.usage.agent, model: words.usage.model, day: words.usage.day }[group];
}

function GroupTable({ group, rows, measure, hasCost, names }: { group: UsageGroup; rows: readonly UsageRow[]; measure: Measure; hasCost: boolean; names: Names }) {
  const most = Math.max(...rows.map((row) => measured(row, measure)), 0);
  if (!rows.length) return <p className="faint">{words.usage.none}</p>;
  return (
    <div className="usage-table" tabIndex={0} role="region" aria-label={words.usage.groups[group]}>
      <table>
        <thead>
          <tr>
            <th scope="col">{columnOf(group)}</th>
            <td className="is-share" aria-hidden="true" />
            <ColumnHeads names={[words.settings.messages, words.settings.inputTokens, words.settings.outputTokens, hasCost && words.usage.cost]} />
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={row.group ?? ""}>
              <th scope="row" dir="auto">
                {nameOf(row, group, names)}
              </th>
              <td className="is-share" aria-hidden="true">
                <svg className="bar" width="100%" height="10" focusable="false">
                  <rect className="bar-fill" width={`${most > 0 ? (100 * measured(row, measure)) / most : 0}%`} height="10" rx="2" />
                </svg>
              </td>
              <td className="is-number">{countInWords(row.messages)}</td>
              <td className="is-number">{countInWords(row.input_tokens)}</td>
              <td className="is-number">{countInWords(row.output_tokens)}</td>
              {hasCost && <td className="is-number">{typeof row.cost === "number" ? costInWords(row.cost) : words.usage.noPrice}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function CsvButton({ group, only }: { group: UsageGroup; only: UsageFilter }) {
  const { notices } = useServices();
  const save = async () => {
    try {
      saveText(`usage-${only.month ?? ""}-${group}.csv`, await usageCsv(only, group), "text/csv");
    } catch (error) {
      notices.report(error);
    }
  };
  return (
    <button type="button" className="button is-link" onClick={() => void save()} aria-label={words.usage.csvOf(words.usage.groups[group])}>
      <Icon name="download" />
      {words.usage.csv}
    </button>
  );
}

/** How far limits are used. */
export function LimitList({ limits }: { limits: readonly LimitUse[] }) {
  if (!limits.length) return null;
  return (
    <ul className="limits">
      {limits.map((one) => {
        const label = words.usage.limitNames[one.name as keyof typeof words.usage.limitNames] ?? one.name;
        return (
          <li key={`${one.scope}/${one.name}`}>
            <span className="limit-text">
              <span>{label}</span>
              <span>{words.usage.used(limitAsText(one.name, one.used), limitAsText(one.name, one.limit), shareInWords(one.limit > 0 ? one.used / one.limit : 1))}</span>
            </span>
            <meter min={0} max={Math.max(one.limit, 1e-9)} high={one.limit * 0.85} value={Math.min(one.used, one.limit)} aria-label={label} />
          </li>
        );
      })}
    </ul>
  );
}

function limitAsText(name: string, value: number): string {
  if (name === "stored_byte_limit") return sizeInWords(value);
  return name === "monthly_cost_limit" ? costInWords(value) : countInWords(value);
}

/** The turns behind the usage, each with a link to what happened in it. */
function Turns({ only, day, days, onDay, showsUsers, hasCost }: { only: UsageFilter; day: string; days: readonly UsageRow[]; onDay: (day: string) => void; showsUsers: boolean; hasCost: boolean }) {
  const list = useLoadedList(useCallback((cursor: string | null) => usageTurns({ ...only, day: day || null }, cursor), [only, day]));
  return (
    <section className="card">
      <h2>{words.usage.turns}</h2>
      <p className="faint">{words.usage.turnsIntro}</p>
      <div className="filters">
        <SelectField label={words.usage.day} value={day} onChange={onDay}>
          <option value="">{words.usage.allDays}</option>
          {days
            .map((row) => row.group ?? "")
            .sort()
            .map((one) => (
              <option key={one} value={one}>
                {dayInWords(one)}
              </option>
            ))}
        </SelectField>
      </div>
      {list.items === null ? <LoadStatus error={list.error} onRetry={list.reload} /> : list.items.length ? <TurnTable turns={list.items} showsUsers={showsUsers} hasCost={hasCost} /> : <p className="faint">{words.usage.none}</p>}
      <MoreButton list={list} label={words.usage.moreTurns} />
    </section>
  );
}

function TurnTable({ turns, showsUsers, hasCost }: { turns: readonly UsageTurn[]; showsUsers: boolean; hasCost: boolean }) {
  return (
    <div className="usage-table" tabIndex={0} role="region" aria-label={words.usage.turns}>
      <table>
        <thead>
          <tr>
            <th scope="col">{words.usage.asked}</th>
            <th scope="col">{words.usage.state}</th>
            {showsUsers && <th scope="col">{words.usage.person}</th>}
            <th scope="col">{words.usage.model}</th>
            <ColumnHeads names={[words.usage.took, words.usage.measures.tokens, hasCost && words.usage.cost]} />
          </tr>
        </thead>
        <tbody>
          {turns.map((turn) => (
            <tr key={turn.id} data-turn={turn.id}>
              <th scope="row">
                <RouteLink route={{ page: "timeline", turnId: turn.id }} title={words.usage.open(timeInWords(turn.created_at))}>
                  {timeInWords(turn.created_at)}
                </RouteLink>
              </th>
              <td>{words.timeline.status[turn.status as keyof typeof words.timeline.status] ?? turn.status}</td>
              {showsUsers && <td dir="auto">{turn.user ? (turn.user.name ?? turn.user.external_id) : ""}</td>}
              <td dir="auto">{turn.model ?? ""}</td>
              <td className="is-number">{turn.settled_at === null || turn.settled_at === undefined ? "" : durationInWords(turn.settled_at - turn.created_at)}</td>
              <td className="is-number">{countInWords(turn.input_tokens + turn.output_tokens)}</td>
              {hasCost && <td className="is-number">{typeof turn.cost === "number" ? writtenAs(turn.cost, "cost") : ""}</td>}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

/** This month and those before it, the newest first. */
function lastMonths(thisMonth: string): string[] {
  const [year = 0, month = 1] = thisMonth.split("-").map(Number);
  return Array.from({ length: MONTHS }, (_, back) => new Date(Date.UTC(year, month - 1 - back, 1)).toISOString().slice(0, 7));
}
