/** What happened in a turn: each piece of work in a table, with its times as words and as a bar. Loaded when it is opened. */
import { type KeyboardEvent, useCallback, useEffect, useId, useState } from "react";

import type { Span, Timeline } from "@turnkeep/client";
import { timeline } from "../../effects/requests";
import { costInWords, countInWords, durationInWords, timeInWords, words } from "../../words";
import { brandName } from "../Brand";
import { Head } from "../Head";
import { Icon, type IconName } from "../Icon";
import { ColumnHeads } from "../ColumnHeads";
import { LoadStatus, useLoaded } from "../requestState";
import { RouteLink } from "../RouteLink";
import { useIsNarrow } from "../useScreen";
import { SpanDetails } from "./SpanDetails";

/** How often the timeline of a turn that has not ended is loaded again. */
const RELOAD_MS = 2_000;
/** Number of rows that are drawn at first, and added by one click. */
const ROWS = 300;

export default function TimelineView({ turnId, onMenu }: { turnId: string; onMenu: () => void }) {
  const loaded = useLoaded(useCallback(() => timeline(turnId), [turnId]));
  const { value, error, reload } = loaded;
  useEffect(() => {
    document.title = `${words.timeline.title} · ${brandName()}`;
  }, []);
  useEffect(() => {
    if (!value || value.settled_at !== null) return undefined;
    const timer = setTimeout(reload, RELOAD_MS);
    return () => clearTimeout(timer);
  }, [value, error, reload]);
  return (
    <main className="main settings">
      <Head onMenu={onMenu}>
        <h1 className="title">{words.timeline.title}</h1>
      </Head>
      <div className="settings-body is-wide">
        {value ? (
          <>
            <Summary timeline={value} />
            <Waterfall timeline={value} />
          </>
        ) : loaded.isMissing ? (
          <p role="alert">{words.timeline.missing}</p>
        ) : (
          <LoadStatus error={error} onRetry={reload} />
        )}
      </div>
    </main>
  );
}

function Summary({ timeline: shown }: { timeline: Timeline }) {
  const { usage, user } = shown;
  const took = durationInWords((shown.settled_at ?? shown.now) - shown.created_at);
  const facts: [string, string | null][] = [
    [words.timeline.state, words.timeline.status[shown.status]],
    [words.timeline.asked, timeInWords(shown.created_at)],
    [words.timeline.took, shown.settled_at === null ? words.timeline.soFar(took) : took],
    [words.timeline.tokens, words.timeline.tokenCount(countInWords(usage.input_tokens), countInWords(usage.output_tokens))],
    [words.timeline.cost, shown.cost === null ? null : costInWords(shown.cost)],
    [words.timeline.model, shown.model],
    [words.timeline.agent, shown.agent_name],
    [words.timeline.person, user ? (user.name ?? user.external_id) : null],
    [words.timeline.error, shown.error ? [shown.error.code, shown.error.message].filter(Boolean).join(": ") : null],
  ];
  return (
    <section className="card" aria-label={words.timeline.state}>
      <dl className="facts">
        {facts.map(
          ([name, value]) =>
            value && (
              <div key={name} className="fact">
                <dt>{name}</dt>
                <dd dir="auto">{value}</dd>
              </div>
            ),
        )}
      </dl>
      {shown.access === "outline" ? (
        <p className="faint">{words.timeline.outline}</p>
      ) : (
        <p>
          <RouteLink className="link to-conversation" route={{ page: "chat", conversationId: shown.conversation_id }}>
            {words.timeline.conversation}
          </RouteLink>
        </p>
      )}
    </section>
  );
}

function Waterfall({ timeline: shown }: { timeline: Timeline }) {
  const [count, setCount] = useState(ROWS);
  const [opened, setOpened] = useState<ReadonlySet<string>>(new Set());
  const isNarrow = useIsNarrow();
  const { spans } = shown;
  if (!spans.length) return <p className="faint">{words.timeline.none}</p>;
  const columns: Columns = { hasTimes: !isNarrow, hasCost: !isNarrow && spans.some((span) => typeof span.cost === "number") };
  const toggle = (id: string) => setOpened((before) => new Set(before.has(id) ? [...before].filter((one) => one !== id) : [...before, id]));
  const left = spans.length - count;
  return (
    <>
      <div className="waterfall">
        <table>
          <caption className="visually-hidden">{words.timeline.table}</caption>
          <thead>
            <tr>
              <th scope="col">{words.timeline.what}</th>
              <ColumnHeads names={[columns.hasTimes && words.timeline.began, words.timeline.took, words.timeline.tokens, columns.hasCost && words.timeline.cost]} />
              {columns.hasTimes && <th scope="col">{words.timeline.bar}</th>}
            </tr>
          </thead>
          <tbody onKeyDown={moveBetweenRows}>
            {spans.slice(0, count).map((span) => (
              <SpanRow key={span.id} timeline={shown} span={span} columns={columns} isOpen={opened.has(span.id)} onToggle={toggle} />
            ))}
          </tbody>
        </table>
      </div>
      {left > 0 && (
        <button type="button" className="button is-more" onClick={() => setCount((before) => before + ROWS)}>
          {words.timeline.more(Math.min(left, ROWS))}
        </button>
      )}
    </>
  );
}

const ICONS: Readonly<Record<Span["kind"], IconName>> = { queue: "clock", model: "thought", tool: "bolt", wait: "hand", takeover: "right", retry: "again", steer: "steer", files: "file", log: "page" };

/** The columns that a wide screen has, beside what, how long, and tokens. A narrow one shows the rest in the opened row. */
interface Columns {
  readonly hasTimes: boolean;
  readonly hasCost: boolean;
}

/** What happens at one moment, and takes no time. */
const MOMENTS: ReadonlySet<Span["kind"]> = new Set(["retry", "steer", "files", "log"]);

interface RowProps {
  timeline: Timeline;
  span: Span;
  columns: Columns;
  isOpen: boolean;
  onToggle: (id: string) => void;
}

function SpanRow({ timeline: shown, span, columns, isOpen, onToggle }: RowProps) {
  const id = useId();
  const { usage } = span;
  const end = span.ended_at ?? shown.now;
  const took = durationInWords(end - span.started_at);
  return (
    <>
      <tr className={`span is-${span.status} is-${span.kind}${isOpen ? " is-open" : ""}`} data-span={span.id}>
        <th scope="row">
          <button type="button" className={span.parent_id ? "span-name is-child" : "span-name"} aria-expanded={isOpen} aria-controls={isOpen ? id : undefined} onClick={() => onToggle(span.id)}>
            <Icon name={ICONS[span.kind] ?? "more"} />
            <span className="span-text">
              <span className="span-kind">{words.timeline.kinds[span.kind] ?? span.kind}</span> <span className="span-what">{nameOf(span)}</span>
            </span>
            <span className={span.status === "succeeded" ? "visually-hidden" : "span-end"}>{words.timeline.ends[span.status] ?? span.status}</span>
            <Icon name="down" />
          </button>
        </th>
        {columns.hasTimes && <td className="is-number">{durationInWords(span.started_at - shown.created_at)}</td>}
        <td className="is-number">{MOMENTS.has(span.kind) ? "–" : span.ended_at === null || span.ended_at === undefined ? words.timeline.soFar(took) : span.is_estimated ? words.timeline.about(took) : took}</td>
        <td className="is-number">{usage ? countInWords(usage.input_tokens + usage.output_tokens) : ""}</td>
        {columns.hasCost && <td className="is-number">{typeof span.cost === "number" ? costInWords(span.cost) : ""}</td>}
        {columns.hasTimes && (
          <td>
            <Bar from={span.started_at} to={end} start={shown.created_at} whole={(shown.settled_at ?? shown.now) - shown.created_at} />
          </td>
        )}
      </tr>
      {isOpen && (
        <tr id={id} className="span-details">
          <td colSpan={3 + (columns.hasTimes ? 2 : 0) + (columns.hasCost ? 1 : 0)}>
            <SpanDetails timeline={shown} span={span} />
          </td>
        </tr>
      )}
    </>
  );
}

/** What the row is about. Names of tools and log lines are texts of others, and are shown as they are. */
function nameOf(span: Span): string {
  switch (span.kind) {
    case "wait":
      return words.timeline.waits[span.name as keyof typeof words.timeline.waits] ?? span.name;
    case "takeover":
      return [words.timeline.takeovers[span.name as keyof typeof words.timeline.takeovers] ?? span.name, span.note ? words.timeline.attempt(span.note) : ""].filter(Boolean).join(", ");
    case "log":
    case "retry":
      return span.note ?? span.name;
    case "files":
      return span.note ?? "";
    default:
      return span.name;
  }
}

/** The place of a span in the time of the turn. A moment is drawn as a line. */
function Bar({ from, to, start, whole }: { from: number; to: number; start: number; whole: number }) {
  const part = (time: number) => (whole > 0 ? (100 * Math.min(Math.max(time - start, 0), whole)) / whole : 0);
  const x = Math.min(part(from), 99.4);
  return (
    <svg className="bar" width="100%" height="14" aria-hidden="true" focusable="false">
      <rect className="bar-track" x="0" y="6" width="100%" height="2" />
      <rect className="bar-fill" x={`${x}%`} y="2" width={`${Math.max(part(to) - x, 0.6)}%`} height="10" rx="2" />
    </svg>
  );
}

/** The arrows, Home and End move between the rows. */
function moveBetweenRows(event: KeyboardEvent<HTMLElement>): void {
  const buttons = [...event.currentTarget.querySelectorAll<HTMLElement>(".span-name")];
  const at = buttons.indexOf(event.target as HTMLElement);
  if (at < 0 || event.altKey || event.ctrlKey || event.metaKey) return;
  const target = { ArrowDown: buttons[at + 1], ArrowUp: buttons[at - 1], Home: buttons[0], End: buttons.at(-1) }[event.key];
  if (!target) return;
  event.preventDefault();
  target.focus();
}
