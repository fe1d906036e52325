/** Finds the message that somebody came for by its words, however far back it is, and shows it. */
import { type RefObject, useEffect, useRef, useState } from "react";
import type { VListHandle } from "virtua";

import { messageText } from "../../state/message";
import { locate } from "../../state/passage";
import type { Row } from "../../state/selectors";
import type { Thread } from "../../state/thread";
import type { Message } from "../../wire/types";
import { useServices } from "../context";
import { markPassage, show, unmark } from "../source/highlight";

/** Rows are drawn when they come into view; so long is waited for the one that was scrolled to. */
const MOST_FRAMES = 60;

/** How the search goes, where there is something to say about it. */
export type Search = "under_way" | "in_vain" | null;

export function useCitedMessage(
  thread: Thread,
  quote: string | undefined,
  rows: readonly Row[],
  root: RefObject<HTMLElement | null>,
  list: RefObject<VListHandle | null>,
  onShown: () => void,
): Search {
  const { threads } = useServices();
  const seen = useRef(new WeakMap<Message, boolean>());
  const shown = useRef<string | undefined>(undefined);
  const [search, setSearch] = useState<Search>(null);
  useEffect(() => {
    seen.current = new WeakMap();
    shown.current = undefined;
    setSearch(null);
  }, [quote]);
  useEffect(() => {
    if (!quote || shown.current === quote) return;
    const holds = (message: Message): boolean => {
      const known = seen.current.get(message) ?? locate(messageText(message.content), quote) !== null;
      seen.current.set(message, known);
      return known;
    };
    const place = rows.findLastIndex((row) => row.kind === "message" && holds(row.message));
    const row = rows[place];
    if (row?.kind === "message") {
      shown.current = quote;
      setSearch(null);
      onShown();
      list.current?.scrollToIndex(place, { align: "center" });
      whenDrawn(root, row.message, (article) => markPassage(article, quote) ?? article);
    } else if (thread.older) {
      setSearch("under_way");
      void threads.loadOlder(thread.id);
    } else if (thread.older === null) {
      shown.current = quote;
      setSearch("in_vain");
    }
  }, [quote, rows, thread.older, thread.id, threads, root, list, onShown]);
  useEffect(() => {
    const element = root.current;
    return () => {
      if (element) unmark(element);
    };
  }, [quote, root]);
  return search;
}

/** The article of a message, once the list has drawn it: marked, in view, and focused. */
function whenDrawn(root: RefObject<HTMLElement | null>, message: Message, mark: (article: HTMLElement) => HTMLElement, frames = 0): void {
  const name = message.role === "assistant" ? "is-assistant" : "is-user";
  const article = root.current?.querySelector<HTMLElement>(`.${name}[data-turn="${CSS.escape(message.turn_id)}"]`);
  if (article) show(mark(article));
  else if (frames < MOST_FRAMES) requestAnimationFrame(() => whenDrawn(root, message, mark, frames + 1));
}
