/** One step as a row that is updated in place: what ran, with what, what came of it, and how long it took. */
import { memo } from "react";

import type { StepPart } from "../../wire/types";
import { durationInWords, words } from "../../words";
import { Icon } from "../Icon";
import { Disclosure } from "./Disclosure";

/** Longer texts are shown in part; the whole of them is in the trace. */
const MOST_CHARS = 20_000;

export const Step = memo(function Step({ turnId, step }: { turnId: string; step: StepPart }) {
  return (
    <Disclosure name={`${turnId}:${step.id}`} className={`step is-${step.status}`} data-step={step.id}>
      <summary>
        <span className="step-mark" aria-hidden="true">
          {step.status === "running" ? <span className="spinner" /> : <Icon name={step.status === "failed" ? "warn" : "check"} />}
        </span>
        <span className="step-name">{step.name}</span>
        <span className="step-gist">{gist(step.args)}</span>
        <span className="step-end">
          <span className={step.status === "succeeded" ? "unseen" : undefined}>{words.thread.step[step.status]}</span>
          {step.durationMs !== undefined && <span className="step-time"> {durationInWords(step.durationMs)}</span>}
        </span>
        <Icon name="down" />
      </summary>
      <div className="step-body">
        <Value label={words.thread.stepArguments} value={step.args} />
        <Value label={words.thread.stepResult} value={step.result} />
        <Value label={words.thread.stepError} value={step.error} />
      </div>
    </Disclosure>
  );
});

function Value({ label, value }: { label: string; value: unknown }) {
  if (value === undefined || value === null || value === "") return null;
  return (
    <section>
      <h3>{label}</h3>
      <pre tabIndex={0} aria-label={label} role="region">
        {written(value)}
      </pre>
    </section>
  );
}

function written(value: unknown): string {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return text.length > MOST_CHARS ? `${text.slice(0, MOST_CHARS)}…` : text;
}

/** The arguments in a few words, for the closed row. */
function gist(args: unknown): string {
  if (typeof args !== "object" || args === null) return typeof args === "string" ? args.slice(0, 120) : "";
  return Object.values(args)
    .map((value) => (typeof value === "string" ? value : JSON.stringify(value)))
    .join(", ")
    .slice(0, 120);
}
