/** The parts of a message, one small component for each kind. */
import { Fragment, memo, useMemo } from "react";

import { sourceOf } from "../../state/sources";
import type { Part, Source } from "../../wire/types";
import { words } from "../../words";
import { Icon } from "../Icon";
import { type Cites, Markdown } from "../markdown/Markdown";
import { Citation } from "./Citation";
import { Disclosure } from "./Disclosure";
import { FileList } from "./Files";
import { anchorOf, Sources } from "./Sources";
import { Step } from "./Step";

interface Props {
  turnId: string;
  threadId: string;
  parts: readonly Part[];
  sources: readonly Source[];
  /** Whether the last part is still being said. */
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

/** Neighbouring steps, and neighbouring files, stand together. */
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
