/** The parts of a message, one small component for each kind. */
import { Fragment, memo, useMemo } from "react";

import { sourceOf } from "../../state/sources";
import type { Part, Source, StepPart } from "../../wire/types";
import { durationInWords, words } from "../../words";
import { Icon } from "../Icon";
import { type Cites, Markdown } from "../markdown/Markdown";
import { Disclosure } from "./Disclosure";
import { FileList } from "./Files";
import { anchorOf, Citation, Sources } from "./Sources";

interface Props {
  turnId: string;
  threadId: string;
  parts: readonly Part[];
  sources: readonly Source[];
  /** Whether the last part is still growing. */
  isGrowing: boolean;
}

export const Parts = memo(function Parts({ turnId, threadId, parts, sources, isGrowing }: Props) {
  const cites = useMemo(() => (sources.length ? citesOf(turnId, threadId, sources) : undefined), [turnId, threadId, sources]);
  return (
    <>
      {grouped(parts).map((group, at, all) => {
        const isLast = isGrowing && at === all.length - 1;
        switch (group.type) {
          case "text":
            return <Markdown key={at} text={group.text} isGrowing={isLast} cites={cites} />;
          case "reasoning":
            return <Reasoning key={at} name={`${turnId}:thoughts:${at}`} text={group.text} isGrowing={isLast} />;
          case "steps":
            return (
              <div key={at} className="steps">
                {group.steps.map((step) => (
                  <Step key={step.id} turnId={turnId} step={step} />
                ))}
              </div>
            );
          case "files":
            return <FileList key={at} files={group.files} label={words.thread.files} />;
          default:
            return <Fragment key={at}>{group satisfies never}</Fragment>;
        }
      })}
      <Sources turnId={turnId} threadId={threadId} sources={sources} />
    </>
  );
});

function citesOf(turnId: string, threadId: string, sources: readonly Source[]): Cites {
  return {
    draw: (number) => {
      const source = sourceOf(sources, number);
      return source ? <Citation number={number} source={source} threadId={threadId} anchor={anchorOf(turnId, number)} /> : null;
    },
  };
}

type Group =
  | { type: "text" | "reasoning"; text: string }
  | { type: "steps"; steps: Extract<Part, { type: "step" }>[] }
  | { type: "files"; files: Extract<Part, { type: "file" }>[] };

/** Neighbouring steps are drawn as one group, and so are neighbouring files. */
function grouped(parts: readonly Part[]): Group[] {
  const groups: Group[] = [];
  for (const part of parts) {
    const last = groups.at(-1);
    if (part.type === "step" && last?.type === "steps") last.steps.push(part);
    else if (part.type === "step") groups.push({ type: "steps", steps: [part] });
    else if (part.type === "file" && last?.type === "files") last.files.push(part);
    else if (part.type === "file") groups.push({ type: "files", files: [part] });
    else groups.push({ type: part.type, text: part.text });
  }
  return groups;
}

function Reasoning({ name, text, isGrowing }: { name: string; text: string; isGrowing: boolean }) {
  return (
    <Disclosure name={name} className={isGrowing ? "reasoning is-growing" : "reasoning"}>
      <summary>
        <Icon name="thought" />
        <span>{isGrowing ? words.thread.reasoningLive : words.thread.reasoning}</span>
        <Icon name="down" />
      </summary>
      <div className="reasoning-text">{text}</div>
    </Disclosure>
  );
}

/** Longer texts are cut here, as they would make the browser slow. The trace has the whole text. */
const MAX_CHARS = 1_000_000;

/** One step, a row that is updated in place: what ran, its arguments, its result, and how long it took. */
const Step = memo(function Step({ turnId, step }: { turnId: string; step: StepPart }) {
  return (
    <Disclosure name={`${turnId}:${step.id}`} className={`step is-${step.status}`} data-step={step.id}>
      <summary>
        <span className="step-mark" aria-hidden="true">
          {step.status === "running" ? <span className="spinner" /> : <Icon name={step.status === "failed" ? "warn" : "check"} />}
        </span>
        <span className="step-name">{step.name}</span>
        <span className="step-gist">{gist(step.args)}</span>
        <span className="step-end">
          <span className={step.status === "succeeded" ? "visually-hidden" : undefined}>{words.thread.step[step.status]}</span>
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
  return text.length > MAX_CHARS ? `${text.slice(0, MAX_CHARS)}…` : text;
}

/** The arguments in one short line, for the closed row. */
function gist(args: unknown): string {
  if (typeof args !== "object" || args === null) return typeof args === "string" ? args.slice(0, 120) : "";
  return Object.values(args)
    .map((value) => (typeof value === "string" ? value : JSON.stringify(value)))
    .join(", ")
    .slice(0, 120);
}
