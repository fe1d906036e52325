/** What an answer is based on: its sources in a list, each of which opens the place that is cited. */
import { memo } from "react";

import { numberOf, plainWords, targetOf, type Target } from "../../state/sources";
import type { Source } from "../../wire/types";
import { words } from "../../words";
import { Icon, type IconName } from "../Icon";
import { safeHref } from "../markdown/parse";
import { RouteLink } from "../RouteLink";

export const anchorOf = (turnId: string, number: number) => `source-${turnId}-${number}`;

interface Props {
  turnId: string;
  threadId: string;
  sources: readonly Source[];
}

export const Sources = memo(function Sources({ turnId, threadId, sources }: Props) {
  if (!sources.length) return null;
  return (
    <section className="sources" aria-label={words.thread.sources}>
      <ol>
        {sources.map((source, at) => {
          const number = numberOf(source, at);
          const target = targetOf(source, threadId);
          return (
            <li key={at} id={anchorOf(turnId, number)} value={number} tabIndex={-1}>
              <span className="source-number" aria-hidden="true">
                {number}
              </span>
              <span className="source-text">
                <Title source={source} target={target} />
                <Where source={source} target={target} />
                {source.snippet && <span className="source-snippet">{plainWords(source)}</span>}
              </span>
            </li>
          );
        })}
      </ol>
    </section>
  );
});

function Title({ source, target }: { source: Source; target: Target | null }) {
  if (target?.kind === "route")
    return (
      <RouteLink route={target.route} title={source.title}>
        {source.title}
      </RouteLink>
    );
  const href = target ? safeHref(target.url) : null;
  if (href === null) return <span className="source-title">{source.title}</span>;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow" title={href}>
      {source.title}
    </a>
  );
}

/** What kind of thing it is, and where in it: `Page · Opening hours`. */
export function Where({ source, target }: { source: Source; target: Target | null }) {
  const kind = kindOf(source, target);
  if (!kind && !source.place) return null;
  return (
    <span className="source-where">
      {kind && <Icon name={kind.icon} />}
      <span>{[kind?.name, source.place].filter(Boolean).join(" · ")}</span>
    </span>
  );
}

function kindOf(source: Source, target: Target | null): { icon: IconName; name: string } | null {
  if (target?.kind === "web") return { icon: "web", name: hostOf(target.url) };
  if (source.conversation_id) return { icon: "talk", name: words.reading.conversation };
  if (source.page_id) return { icon: "page", name: words.reading.kinds.page };
  if (source.table_id) return { icon: "table", name: words.reading.kinds.table };
  if (source.file_id) return { icon: "file", name: words.reading.kinds.file };
  return null;
}

const hostOf = (url: string): string => (safeHref(url)?.startsWith("http") ? new URL(url).host : "");
