/** The parts of a message, one small component for each kind. */
import { Fragment, memo, useMemo } from "react";

import type { Part, Source, SteeredWords, StepPart } from "@turnkeep/client";
import { sourceOf } from "../../state/sources";
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
  /** Words of the user that were added while the answer was written. */
  steered: readonly SteeredWords[];
  /** Whether the last part is still growing. */
  isGrowing: boolean;
}

export const Parts = memo(function Parts({ turnId, threadId, parts, sources, steered, isGrowing }: Props) {
  const cites = useMemo(() => (sources.length ? citesOf(turnId, threadId, sources) : undefined), [turnId, threadId, sources]);
  return (
    <>
      {grouped(parts, steered).map((group, at, all) => {
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
          case "steered":
            return (
              <div key={at} className="steered" role="group" aria-label={words.thread.steered}>
                <div className="bubble" dir="auto">
                  {group.text}
                </div>
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
  | { type: "text" | "reasoning" | "steered"; text: string }
  | { type: "steps"; steps: Extract<Part, { type: "step" }>[] }
  | { type: "files"; files: Extract<Part, { type: "file" }>[] };

/** Neighbouring steps are drawn as one group, and so are neighbouring files. Words that steered the turn stand at their place. */
function grouped(parts: readonly Part[], steered: readonly SteeredWords[]): Group[] {
  const groups: Group[] = [];
  const addSteered = (at: number, isEnd: boolean) => {
    for (const words of steered) if (isEnd ? words.at >= at : words.at === at) groups.push({ type: "steered", text: words.text });
  };
  for (const [at, part] of parts.entries()) {
    addSteered(at, false);
    const last = groups.at(-1);
    if (part.type === "step" && last?.type === "steps") last.steps.push(part);
    else if (part.type === "step") groups.push({ type: "steps", steps: [part] });
    else if (part.type === "file" && last?.type === "files") last.files.push(part);
    else if (part.type === "file") groups.push({ type: "files", files: [part] });
    else groups.push({ type: part.type, text: part.text });
  }
  addSteered(parts.length, true);
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
      <div className="reasoning-text">
        <Markdown text={text} isGrowing={isGrowing} />
      </div>
    </Disclosure>
  );
}

/** Longer texts are cut here, as they would make the browser slow. The trace has the whole text. */
const MAX_CHARS = 1_000_000;

/** One step, a row that is updated in place: what ran, its arguments, its result, and how long it took. */
const Step = memo(function Step({ turnId, step }: { turnId: string; step: StepPart }) {
  const end = endOf(step);
  return (
    <Disclosure name={`${turnId}:${step.id}`} className={`step is-${end === "denied" ? "failed" : end}`} data-step={step.id}>
      <summary>
        <span className="step-mark" aria-hidden="true">
          {end === "running" ? <span className="spinner" /> : <Icon name={end === "succeeded" ? "check" : end === "stopped" ? "stop" : "warn"} />}
        </span>
        <span className="step-name">{step.name}</span>
        <span className="step-gist">{gist(step.args)}</span>
        <span className="step-end">
          <span className={end === "succeeded" ? "visually-hidden" : undefined}>{words.thread.step[end]}</span>
          {step.durationMs !== undefined && <span className="step-time"> {durationInWords(step.durationMs)}</span>}
        </span>
        <Icon name="down" />
      </summary>
      <div className="step-body">
        <Value label={words.thread.stepArguments} value={step.args} />
        <Value label={words.thread.stepResult} value={step.result} />
        <Value label={end === "stopped" ? words.thread.stepStopped : words.thread.stepError} value={step.error} />
      </div>
    </Disclosure>
  );
});

/** How a step ended, for a reader. The server calls each step without a result failed; its words tell denied and stopped ones apart. */
function endOf(step: StepPart): StepPart["status"] | "denied" | "stopped" {
  if (step.status !== "failed" || typeof step.error !== "string") return step.status;
  if (/^Denied( by |: )/.test(step.error)) return "denied";
  return /^(outcome_unknown: |[Nn]ot answered: |Allowed by .*, but )the turn was stopped before /.test(step.error) ? "stopped" : "failed";
}

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
