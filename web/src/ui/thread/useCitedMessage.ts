/** Finds the cited message by its quote, loading earlier messages as needed, and shows it. */
import { type RefObject, useEffect, useRef, useState } from "react";
import type { VListHandle } from "virtua";

import { messageText } from "../../state/message";
import { locate } from "../../state/passage";
import type { MessageRow } from "../../state/selectors";
import type { Thread } from "../../state/thread";
import type { Message } from "../../wire/types";
import { useServices } from "../context";
import { markPassage, show, unmark } from "../source/citedPassage";

/** How many frames to wait until the list has drawn the row that it scrolled to. */
const MAX_FRAMES = 60;

/** The state of the search, if the page shows a text about it. */
export type Search = "running" | "not_found" | null;

export function useCitedMessage(
  thread: Thread,
  quote: string | undefined,
  rows: readonly MessageRow[],
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
      showWhenDrawn(root, row.message, (article) => markPassage(article, quote) ?? article);
    } else if (thread.older) {
      setSearch("running");
      void threads.loadOlder(thread.id);
    } else if (thread.older === null) {
      shown.current = quote;
      setSearch("not_found");
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

/** When the list has drawn the message: mark it, scroll to it and focus it. */
function showWhenDrawn(root: RefObject<HTMLElement | null>, message: Message, mark: (article: HTMLElement) => HTMLElement, frames = 0): void {
  const name = message.role === "assistant" ? "is-assistant" : "is-user";
  const article = root.current?.querySelector<HTMLElement>(`.${name}[data-turn="${CSS.escape(message.turn_id)}"]`);
  if (article) show(mark(article));
  else if (frames < MAX_FRAMES) requestAnimationFrame(() => showWhenDrawn(root, message, mark, frames + 1));
}
