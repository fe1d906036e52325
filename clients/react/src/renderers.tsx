/** How the parts of an answer are drawn. An application can replace each of them. */
import type { Call, FilePart, Source, StepPart } from "@turnkeep/client";
import type { ComponentType, ReactNode } from "react";

import { Markdown, safeHref } from "./markdown.js";
import type { Words } from "./words.js";

export interface Renderers {
  text: ComponentType<{ text: string; isGrowing: boolean; words: Words }>;
  reasoning: ComponentType<{ text: string; isGrowing: boolean; words: Words }>;
  step: ComponentType<{ step: StepPart; words: Words }>;
  file: ComponentType<{ file: FilePart; words: Words; download(): void }>;
  sources: ComponentType<{ sources: readonly Source[]; words: Words }>;
  /** The calls about which a person must decide. */
  approval: ComponentType<{ calls: readonly Call[]; words: Words; decide(decision: "allow" | "deny", callId: string): void }>;
}

export const defaultRenderers: Renderers = {
  text: ({ text }) => <Markdown text={text} />,
  reasoning: ({ text, isGrowing, words }) => (
    <details className="tk-thoughts" open={isGrowing}>
      <summary>{words.thoughts}</summary>
      <p>{text}</p>
    </details>
  ),
  step: ({ step, words }) => (
    <details className={`tk-step is-${step.status}`}>
      <summary>
        <span className="tk-step-name">{step.name}</span> <span className="tk-step-status">{words.step[step.status] ?? step.status}</span>
      </summary>
      <pre tabIndex={0}>{asText(step.error ?? step.result ?? step.args)}</pre>
    </details>
  ),
  file: ({ file, download }) => (
    <button type="button" className="tk-file" onClick={download}>
      {file.name}
    </button>
  ),
  sources: ({ sources, words }) => (
    <section className="tk-sources" aria-label={words.sources}>
      <ol>
        {sources.map((source, at) => (
          <li key={at} value={source.number ?? at + 1}>
            {sourceLink(source)}
          </li>
        ))}
      </ol>
    </section>
  ),
  approval: ({ calls, words, decide }) => (
    <section className="tk-approval" aria-label={words.approval}>
      <p>{words.approval}</p>
      {calls.map((call) => (
        <div key={call.id} className="tk-call">
          <strong>{call.name}</strong>
          <pre tabIndex={0}>{asText(call.args)}</pre>
          <button type="button" onClick={() => decide("allow", call.id)}>
            {words.allow}
          </button>
          <button type="button" onClick={() => decide("deny", call.id)}>
            {words.deny}
          </button>
        </div>
      ))}
    </section>
  ),
};

function sourceLink(source: Source): ReactNode {
  const href = source.url ? safeHref(source.url) : null;
  if (href === null) return <span title={source.snippet}>{source.title}</span>;
  return (
    <a href={href} title={source.snippet} target="_blank" rel="noopener noreferrer nofollow">
      {source.title}
    </a>
  );
}

const asText = (value: unknown): string => (typeof value === "string" ? value : (JSON.stringify(value, null, 2) ?? ""));
