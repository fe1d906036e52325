/** The sources of an answer: the list below it, and the numbers in its text. Each opens the cited passage. */
import { type CSSProperties, type KeyboardEvent, memo, type MouseEvent, useEffect, useRef, useState } from "react";
import { createPortal } from "react-dom";

import type { Source } from "@turnkeep/client";
import { numberOf, plainSnippet, targetOf, type Target } from "../../state/sources";
import { words } from "../../words";
import { Icon, type IconName } from "../Icon";
import { safeHref } from "../markdown/links";
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
                <SourceKind source={source} target={target} />
                {source.snippet && <span className="source-snippet" dir="auto">{plainSnippet(source)}</span>}
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
  if (href === null) return <span className="source-title" dir="auto">{source.title}</span>;
  return (
    <a href={href} target="_blank" rel="noopener noreferrer nofollow" title={href}>
      {source.title}
    </a>
  );
}

/** The kind of the source, and the cited section: `Page · Opening hours`. */
function SourceKind({ source, target }: { source: Source; target: Target | null }) {
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
  if (source.conversation_id) return { icon: "talk", name: words.source.conversation };
  if (source.page_id) return { icon: "page", name: words.source.kinds.page };
  if (source.table_id) return { icon: "table", name: words.source.kinds.table };
  if (source.file_id) return { icon: "file", name: words.source.kinds.file };
  return null;
}

const hostOf = (url: string): string => (safeHref(url)?.startsWith("http") ? new URL(url).host : "");

/** The card stays this long, so that the pointer can cross the gap between the number and the card. */
const LINGER_MS = 150;
const CARD_WIDTH = 320;
const CARD_HEIGHT = 180;
const MARGIN = 8;

interface CitationProps {
  number: number;
  source: Source;
  threadId: string;
  /** The id of the source's element in the list. */
  anchor: string;
}

/** `[2]` in an answer: it shows its source on hover or focus, and opens it, or leads to it in the list below. */
export function Citation({ number, source, threadId, anchor }: CitationProps) {
  const link = useRef<HTMLAnchorElement>(null);
  const card = useCard(link);
  const target = targetOf(source, threadId);
  const shared = {
    ref: link,
    className: "cite",
    "aria-label": words.thread.source(number),
    "aria-describedby": anchor,
    onMouseEnter: card.show,
    onMouseLeave: card.hide,
    onFocus: () => link.current?.matches(":focus-visible") && card.show(),
    onBlur: card.hide,
    onKeyDown: (event: KeyboardEvent) => event.key === "Escape" && card.hide(),
  };
  const jump = (event: MouseEvent) => {
    event.preventDefault();
    const item = document.getElementById(anchor);
    item?.scrollIntoView({ block: "nearest" });
    item?.focus({ preventScroll: true });
  };
  return (
    <>
      {target?.kind === "route" ? (
        <RouteLink {...shared} route={target.route}>
          {number}
        </RouteLink>
      ) : (
        <a {...shared} href={`#${anchor}`} onClick={jump}>
          {number}
        </a>
      )}
      {card.style &&
        createPortal(
          // Hidden from screen readers: the list below says the same.
          <span className="cite-card" style={card.style} aria-hidden="true" onMouseEnter={card.show} onMouseLeave={card.hide}>
            <strong>{source.title}</strong>
            <SourceKind source={source} target={target} />
            {source.snippet && <span className="cite-snippet">{plainSnippet(source)}</span>}
          </span>,
          document.body,
        )}
    </>
  );
}

/** The position of the card while it is shown: near the link, inside the window. Scrolling closes it. */
function useCard(link: { current: HTMLElement | null }): { style: CSSProperties | null; show: () => void; hide: () => void } {
  const [style, setStyle] = useState<CSSProperties | null>(null);
  const timer = useRef<ReturnType<typeof setTimeout>>(undefined);
  const isShown = style !== null;
  useEffect(() => {
    if (!isShown) return undefined;
    const gone = () => setStyle(null);
    addEventListener("scroll", gone, { capture: true, passive: true });
    return () => removeEventListener("scroll", gone, { capture: true });
  }, [isShown]);
  useEffect(() => () => clearTimeout(timer.current), []);
  const show = () => {
    clearTimeout(timer.current);
    const at = link.current?.getBoundingClientRect();
    if (at) setStyle((before) => before ?? positionAt(at));
  };
  const hide = () => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setStyle(null), LINGER_MS);
  };
  return { style, show, hide };
}

/** Above the link if there is room, because the list of sources is below. */
function positionAt(at: DOMRect): CSSProperties {
  const left = Math.max(MARGIN, Math.min(at.left - MARGIN, innerWidth - CARD_WIDTH - MARGIN));
  return at.top > CARD_HEIGHT ? { left, bottom: innerHeight - at.top + 6 } : { left, top: at.bottom + 6 };
}
