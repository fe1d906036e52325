/** The parts of a message, one small component for each kind. */
import { Fragment, memo, type ReactNode, useEffect, useMemo, useState } from "react";

import type { Part, Source, SteeredWords, StepPart } from "@turnkeep/client";
import { sourceOf } from "../../state/sources";
import { isShared } from "../../wire/addresses";
import { durationInWords, sizeInWords, words } from "../../words";
import { useServices } from "../context";
import { CopyButton } from "../CopyButton";
import { Icon } from "../Icon";
import { Markdown } from "../markdown/LazyMarkdown";
import type { Cites } from "../markdown/Markdown";
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
            return <FileList key={at} files={group.files} label={words.thread.files} threadId={threadId} />;
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

/** One step, a row that is updated in place: what ran, its arguments, its result, and how long it took. */
const Step = memo(function Step({ turnId, step }: { turnId: string; step: StepPart }) {
  const end = endOf(step);
  const line = (
    <>
      <span className="step-mark" aria-hidden="true">
        {end === "running" ? <span className="spinner" /> : <Icon name={end === "succeeded" ? "check" : end === "stopped" ? "stop" : "warn"} />}
      </span>
      <span className="step-name">{step.name}</span>
      <span className="step-gist">{gist(step.args)}</span>
      <span className="step-end">
        <span className={end === "succeeded" ? "visually-hidden" : undefined}>{words.thread.step[end]}</span>
        {step.durationMs !== undefined && <span className="step-time"> {durationInWords(step.durationMs)}</span>}
        {end === "running" && step.durationMs === undefined && <Timer startedAt={step.startedAt} />}
      </span>
    </>
  );
  const className = `step is-${end === "denied" ? "failed" : end}`;
  // A share link says only that the step ran.
  if (isShared)
    return (
      <div className={className}>
        <div className="step-line">{line}</div>
      </div>
    );
  return (
    <Disclosure name={`${turnId}:${step.id}`} className={className} data-step={step.id}>
      <summary>
        {line}
        <Icon name="down" />
      </summary>
      <div className="step-body">
        <Arguments args={step.args} />
        <Value label={words.thread.stepResult} value={step.result} />
        <Value label={end === "stopped" ? words.thread.stepStopped : words.thread.stepError} value={step.error} />
        {step.is_cut && <WholeStep turnId={turnId} stepId={step.id} />}
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

/** How long the step has been running: since the server says that it began, or else since this page knows of it. */
function Timer({ startedAt }: { startedAt: number | undefined }) {
  const [seen] = useState(() => Date.now());
  const [now, setNow] = useState(seen);
  const began = Math.min(startedAt ?? seen, now);
  useEffect(() => {
    const timer = setInterval(() => setNow(Date.now()), 1_000);
    return () => clearInterval(timer);
  }, []);
  // Read aloud each second it would drown the rest.
  return (
    <span className="step-time" aria-hidden="true">
      {" "}
      {durationInWords(Math.floor((now - began) / 1_000) * 1_000, { isWhole: true })}
    </span>
  );
}

/** Arguments whose values are programs. They are shown as they are, before the others. */
const PROGRAMS: ReadonlySet<string> = new Set(["command", "cmd", "script", "code", "sql"]);
/** Those of a shell. */
const COMMANDS: ReadonlySet<string> = new Set(["command", "cmd"]);

function Arguments({ args }: { args: unknown }) {
  if (typeof args !== "object" || args === null || Array.isArray(args)) return <Value label={words.thread.stepArguments} value={args} />;
  const programs = Object.entries(args).filter((one): one is [string, string] => PROGRAMS.has(one[0]) && typeof one[1] === "string");
  const others = Object.entries(args).filter(([name, value]) => !(PROGRAMS.has(name) && typeof value === "string"));
  return (
    <>
      {programs.map(([name, text]) => (
        <Value key={name} label={COMMANDS.has(name) ? words.thread.stepCommand : name} value={text} isCommand={COMMANDS.has(name)} />
      ))}
      {others.length > 0 && <Value label={words.thread.stepArguments} value={Object.fromEntries(others)} />}
    </>
  );
}

/** Longer texts are drawn up to here at first: most readers want the beginning, and a long text makes the browser slow. */
const SHOWN_CHARS = 20_000;

function Value({ label, value, isCommand = false }: { label: string; value: unknown; isCommand?: boolean }) {
  const [isWhole, setIsWhole] = useState(false);
  if (value === undefined || value === null || value === "") return null;
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  const isLong = text.length > SHOWN_CHARS && !isWhole;
  return (
    <section>
      <div className="step-label">
        <h3>{label}</h3>
        <CopyButton text={text} label={words.thread.copyPart(label)} />
      </div>
      <pre tabIndex={0} aria-label={label} role="region" className={isCommand ? "is-command" : undefined}>
        {isLong ? `${text.slice(0, SHOWN_CHARS)}…` : text}
      </pre>
      {isLong && (
        <button type="button" className="link" onClick={() => setIsWhole(true)}>
          {words.thread.showWhole(sizeInWords(text.length))}
        </button>
      )}
    </section>
  );
}

/** A step that was too long is stored cut. This loads its whole result from the events of its turn. */
function WholeStep({ turnId, stepId }: { turnId: string; stepId: string }) {
  const { threads, notices } = useServices();
  const [isLoading, setIsLoading] = useState(false);
  const [whole, setWhole] = useState<StepPart | null>(null);
  const load = async () => {
    setIsLoading(true);
    try {
      const parts = await threads.wholeAnswer(turnId);
      setWhole(parts.find((part): part is StepPart => part.type === "step" && part.id === stepId) ?? null);
    } catch (error) {
      notices.report(error);
    }
    setIsLoading(false);
  };
  if (whole) return <Value label={words.thread.stepWhole} value={whole.error ?? whole.result} />;
  return (
    <p className="cut-note">
      {words.thread.stepCut}{" "}
      <button type="button" className="link" onClick={() => void load()} disabled={isLoading}>
        {words.thread.showAll}
      </button>
    </p>
  );
}

/** The arguments in one short line, for the closed row. A command is shown as one types it. */
function gist(args: unknown): ReactNode {
  if (typeof args !== "object" || args === null) return typeof args === "string" ? args.slice(0, 120) : "";
  const command = Object.entries(args).find(([name, value]) => COMMANDS.has(name) && typeof value === "string")?.[1] as string | undefined;
  if (command !== undefined) return <code>{`$ ${command.trim().replaceAll(/\s*\n\s*/g, " ⏎ ").slice(0, 120)}`}</code>;
  return Object.values(args)
    .map((value) => (typeof value === "string" ? value : JSON.stringify(value)))
    .join(", ")
    .slice(0, 120);
}
