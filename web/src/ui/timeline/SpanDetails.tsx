/** What one piece of work has in it: all of it is text of models, tools and users, and is shown as text. */
import { useCallback, useState } from "react";

import type { Span, Timeline } from "@turnkeep/client";
import { replay, span as loadSpan } from "../../effects/requests";
import { costInWords, countInWords, durationInWords, timeInWords, words } from "../../words";
import { CopyButton } from "../CopyButton";
import { LoadStatus, useLoaded } from "../requestState";

/** Longer texts are cut here, as they would make the browser slow. They can be copied whole. */
const MAX_CHARS = 1_000_000;

export function SpanDetails({ timeline, span }: { timeline: Timeline; span: Span }) {
  const { usage, first_token_ms: first } = span;
  const facts: [string, string | null][] = [
    [words.timeline.asked, span.kind === "queue" ? timeInWords(span.started_at) : null],
    [words.timeline.began, durationInWords(span.started_at - timeline.created_at)],
    [words.timeline.firstToken, typeof first === "number" ? durationInWords(first) : null],
    [words.timeline.tokens, usage ? words.timeline.tokenCount(countInWords(usage.input_tokens), countInWords(usage.output_tokens)) : null],
    [words.timeline.cost, typeof span.cost === "number" ? costInWords(span.cost) : null],
    [words.timeline.cached, usage?.cache_read_tokens ? countInWords(usage.cache_read_tokens) : null],
  ];
  return (
    <div className="span-body">
      <dl className="facts">
        {facts.map(
          ([name, value]) =>
            value && (
              <div key={name} className="fact">
                <dt>{name}</dt>
                <dd>{value}</dd>
              </div>
            ),
        )}
      </dl>
      {span.is_estimated && <p className="faint">{words.timeline.estimated}</p>}
      {(span.kind === "log" || span.kind === "retry") && <Value label={words.timeline.note} value={span.note} />}
      {span.has_content && <Content timeline={timeline} span={span} />}
      {span.kind === "model" && typeof span.iteration === "number" && timeline.access === "full" && <Sent turnId={timeline.turn_id} iteration={span.iteration} />}
    </div>
  );
}

function Content({ timeline, span }: { timeline: Timeline; span: Span }) {
  // Loaded again when it has ended.
  const loaded = useLoaded(useCallback(() => loadSpan(timeline.turn_id, span.id), [timeline.turn_id, span.id, span.status]));
  const { value } = loaded;
  if (!value) return <LoadStatus error={loaded.error} onRetry={loaded.reload} />;
  const hasContent = [value.args, value.result, value.error, value.text, value.reasoning].some((one) => one !== undefined && one !== null) || !!value.calls?.length;
  return (
    <>
      <Value label={words.timeline.reasoning} value={value.reasoning} />
      <Value label={words.timeline.said} value={value.text} />
      <Value label={words.timeline.calls} value={value.calls?.length ? value.calls : null} />
      <Value label={words.timeline.args} value={value.args} />
      <Value label={span.kind === "wait" ? words.timeline.decisions : words.timeline.result} value={value.result} />
      {value.is_cut && <p className="faint">{words.timeline.cut}</p>}
      <Value label={words.timeline.problem} value={value.error} />
      {!hasContent && <p className="faint">{words.timeline.empty}</p>}
    </>
  );
}

/** What a call of the model was sent: loaded on request, since it may be long. */
function Sent({ turnId, iteration }: { turnId: string; iteration: number }) {
  const [isOpen, setIsOpen] = useState(false);
  return (
    <details className="sent" onToggle={(event) => setIsOpen(event.currentTarget.open)}>
      <summary>{words.timeline.sent}</summary>
      {isOpen && <SentMessages turnId={turnId} iteration={iteration} />}
    </details>
  );
}

function SentMessages({ turnId, iteration }: { turnId: string; iteration: number }) {
  const loaded = useLoaded(useCallback(() => replay(turnId, iteration), [turnId, iteration]));
  const { value } = loaded;
  if (!value) return <LoadStatus error={loaded.error} onRetry={loaded.reload} />;
  return (
    <>
      <p className="faint">{words.timeline.sentNote(value.turns_included, value.turns_dropped)}</p>
      <Value label={words.timeline.system} value={value.system} />
      <Value label={words.timeline.messages} value={value.messages} />
      <Value label={words.timeline.tools} value={value.tools.length ? value.tools : null} />
      <Value label={words.timeline.missingTools} value={value.missing.join("\n")} />
    </>
  );
}

function Value({ label, value }: { label: string; value: unknown }) {
  if (value === undefined || value === null || value === "") return null;
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return (
    <section>
      <div className="span-label">
        <h3>{label}</h3>
        <CopyButton text={text} label={words.timeline.copy(label)} />
      </div>
      <pre tabIndex={0} aria-label={label} role="region" dir="auto">
        {text.length > MAX_CHARS ? `${text.slice(0, MAX_CHARS)}…` : text}
      </pre>
    </section>
  );
}
