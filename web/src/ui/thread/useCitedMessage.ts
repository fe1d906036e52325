/** Finds the message that is cited, or that a search has found, loading earlier messages as needed, and shows it. */
import { type RefObject, useEffect, useRef, useState } from "react";
import type { VListHandle } from "virtua";

import { type Message, type MessageRow, messageText, type Thread } from "@turnkeep/client";
import { locate, locateWords } from "../../state/passage";
import type { Passage } from "../../state/route";
import { useServices } from "../context";
import { keepMarked, markPassage, show } from "../source/citedPassage";
import { scrollIntoView } from "./scroll";

/** The state of the search, if the page shows a text about it. */
export type Search = "running" | "not_found" | null;

export function useCitedMessage(
  thread: Thread,
  passage: Passage | undefined,
  rows: readonly MessageRow[],
  root: RefObject<HTMLElement | null>,
  list: RefObject<VListHandle | null>,
  onShown: () => void,
): Search {
  const { threads } = useServices();
  const seen = useRef(new WeakMap<Message, boolean>());
  const shown = useRef<Passage | undefined>(undefined);
  const [search, setSearch] = useState<Search>(null);
  const [cited, setCited] = useState<{ passage: Passage | undefined; row: string; article: string } | null>(null);
  const latest = useRef(rows);
  latest.current = rows;
  const { quote, found } = passage ?? {};
  // By identity: a passage that is opened again is shown again.
  useEffect(() => {
    seen.current = new WeakMap();
    shown.current = undefined;
    setSearch(null);
  }, [passage]);
  useEffect(() => {
    if (!quote || shown.current === passage) return;
    const holds = (message: Message): boolean => {
      const known = seen.current.get(message) ?? hasPassage(messageText(message.content), quote, found);
      seen.current.set(message, known);
      return known;
    };
    const place = rows.findLastIndex((row) => row.kind === "message" && holds(row.message));
    const row = rows[place];
    if (row?.kind === "message") {
      shown.current = passage;
      setSearch(null);
      onShown();
      setCited({ passage, row: row.key, article: articleOf(row.message) });
    } else if (thread.older) {
      setSearch("running");
      void threads.loadOlder(thread.id);
    } else if (thread.older === null) {
      shown.current = passage;
      setSearch("not_found");
    }
  }, [passage, quote, found, rows, thread.older, thread.id, threads, onShown]);
  // The list draws the message when it has scrolled to it, and again when the reader comes back to it.
  useEffect(() => {
    const element = root.current;
    if (!element || !quote || !cited || cited.passage !== passage) return undefined;
    const drawn = () => element.querySelector<HTMLElement>(cited.article);
    const scrollToRow = () => list.current?.scrollToIndex(latest.current.findIndex((row) => row.key === cited.row), { align: "center" });
    const keep = () => scrollIntoView(element, scrollToRow, () => (drawn()?.querySelector("[data-cited]") ?? drawn())?.getBoundingClientRect());
    let leave = keep();
    let isShown: "no" | "article" | "passage" = "no";
    const unmark = keepMarked(element, () => {
      const article = drawn();
      if (!article) return;
      const block = markPassage(article, quote, found);
      if (block && isShown !== "passage") {
        show(block);
        leave();
        leave = keep();
      } else if (isShown === "no") show(article);
      isShown = block || isShown === "passage" ? "passage" : "article";
    });
    return () => {
      leave();
      unmark();
    };
  }, [passage, quote, found, cited, root, list]);
  return search;
}

/** Whether the text has the passage, with the words that were found in it. */
function hasPassage(text: string, quote: string, found: string | undefined): boolean {
  const passage = locate(text, quote);
  return passage !== null && (!found || locateWords(text, passage, found).length > 0);
}

/** The selector of the element that shows the message. */
function articleOf(message: Message): string {
  return `.${message.role === "assistant" ? "is-assistant" : "is-user"}[data-turn="${CSS.escape(message.turn_id)}"]`;
}
