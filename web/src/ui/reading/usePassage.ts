/** Marks the passage that the reader came for, and brings it into view once. */
import { type RefObject, useEffect, useState } from "react";

import type { Passage } from "../../state/route";
import { markHeading, markPassage, show, unmark } from "./marking";

export type Found = "passage" | "heading" | "nowhere" | null;

/** What was found in the element, as soon as `isDrawn`; null while nothing is sought or nothing is drawn. */
export function usePassage(root: RefObject<HTMLElement | null>, passage: Passage | undefined, isDrawn: boolean): Found {
  const [found, setFound] = useState<Found>(null);
  const { quote, part } = passage ?? {};
  useEffect(() => {
    const element = root.current;
    if (!element || !isDrawn || (!quote && !part)) {
      setFound(null);
      return undefined;
    }
    const mark = (): HTMLElement | null => {
      const cited = quote ? markPassage(element, quote) : null;
      const heading = cited || !part ? null : markHeading(element, part);
      setFound(cited ? "passage" : heading ? "heading" : "nowhere");
      return cited ?? heading;
    };
    const first = mark();
    if (first) show(first);
    // Colours of code and formulas are drawn later, in the place of what was marked.
    const observer = new MutationObserver(() => void mark());
    observer.observe(element, { childList: true, subtree: true });
    return () => {
      observer.disconnect();
      unmark(element);
    };
  }, [root, quote, part, isDrawn]);
  return found;
}
