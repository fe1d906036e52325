/** `[2]` in an answer: it shows its source when it is pointed at, and opens it, or leads to it in the list below. */
import { type CSSProperties, type KeyboardEvent, type MouseEvent, useEffect, useRef, useState } from "react";
import { createPortal } from "react-dom";

import { plainWords, targetOf } from "../../state/sources";
import type { Source } from "../../wire/types";
import { words } from "../../words";
import { RouteLink } from "../RouteLink";
import { Where } from "./Sources";

/** The way from the number to the card may lead over a gap. */
const LINGER_MS = 150;
const CARD_WIDTH = 320;
const CARD_HEIGHT = 180;
const MARGIN = 8;

interface Props {
  number: number;
  source: Source;
  threadId: string;
  /** The id of the source's element in the list. */
  anchor: string;
}

export function Citation({ number, source, threadId, anchor }: Props) {
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
          // The list below says the same to those who listen.
          <span className="cite-card" style={card.style} aria-hidden="true" onMouseEnter={card.show} onMouseLeave={card.hide}>
            <strong>{source.title}</strong>
            <Where source={source} target={target} />
            {source.snippet && <span className="cite-snippet">{plainWords(source)}</span>}
          </span>,
          document.body,
        )}
    </>
  );
}

/** Where the card stands while it is shown: by the link, inside the window. It goes when anything is scrolled. */
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
    if (at) setStyle((before) => before ?? beside(at));
  };
  const hide = () => {
    clearTimeout(timer.current);
    timer.current = setTimeout(() => setStyle(null), LINGER_MS);
  };
  return { style, show, hide };
}

/** Above where there is room, since the list of sources stands below. */
function beside(at: DOMRect): CSSProperties {
  const left = Math.max(MARGIN, Math.min(at.left - MARGIN, innerWidth - CARD_WIDTH - MARGIN));
  return at.top > CARD_HEIGHT ? { left, bottom: innerHeight - at.top + 6 } : { left, top: at.bottom + 6 };
}
