/**
 * The bar that finds words in the whole conversation, as the browser does in a page. The browser itself cannot: only rows
 * in view are drawn, and earlier messages may not be loaded yet. Loaded when it is opened.
 */
import { type RefObject, useDeferredValue, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import type { VListHandle } from "virtua";

import type { MessageRow, Thread } from "@turnkeep/client";
import { type Match, matchesIn, placesOf } from "../../state/find";
import { words } from "../../words";
import { useServices } from "../context";
import { Icon } from "../Icon";
import { scrollIntoView } from "./scroll";

const FOUND = "found";
const CURRENT = "found-current";
const BLOCKS = "p, li, td, th, pre, h3, h4, h5, h6, blockquote, .bubble";

interface Props {
  thread: Thread;
  rows: readonly MessageRow[];
  root: RefObject<HTMLElement | null>;
  list: RefObject<VListHandle | null>;
  /** What was typed before this bar was loaded. */
  begun: RefObject<string>;
  /** The list does not follow its end any more. */
  onShown: () => void;
  onClose: () => void;
}

export default function FindBar({ thread, rows, root, list, begun, onShown, onClose }: Props) {
  const { threads } = useServices();
  const field = useRef<HTMLInputElement>(null);
  const [text, setText] = useState("");
  const sought = useDeferredValue(text.trim());
  const [isLoading, setIsLoading] = useState(false);
  const matches = useMemo(() => (sought ? matchesIn(rows, sought) : []), [rows, sought]);
  /** Null: the newest match. A match keeps its place when earlier messages are loaded. */
  const [chosen, setChosen] = useState<Match | null>(null);
  const place = chosen === null ? -1 : matches.findIndex((one) => one.row === chosen.row && one.nth === chosen.nth);
  const at = place < 0 ? matches.length - 1 : place;
  const current = matches[at];

  // Not before this bar is shown: until then words are typed into the field that it replaces.
  useLayoutEffect(() => {
    setText(begun.current);
    begun.current = "";
  }, [begun]);

  // Earlier messages are loaded once something is sought.
  const { id } = thread;
  const isWanted = sought !== "";
  useEffect(() => {
    if (!isWanted) return;
    setIsLoading(true);
    void threads.loadAll(id).finally(() => setIsLoading(false));
  }, [threads, id, isWanted]);

  const row = current?.row;
  const nth = current?.nth ?? 0;
  const latest = useRef(rows);
  latest.current = rows;
  useEffect(() => {
    const element = root.current;
    if (row === undefined || !element) return undefined;
    onShown();
    const scrollToRow = () => list.current?.scrollToIndex(latest.current.findIndex((one) => one.key === row), { align: "center" });
    return scrollIntoView(element, scrollToRow, () => {
      const drawn = element.querySelector(`.thread-list [data-row="${CSS.escape(row)}"]`);
      const found = ([...(CSS.highlights?.get(CURRENT) ?? [])] as Range[]).find((range) => drawn?.contains(range.startContainer));
      return (found ?? drawn)?.getBoundingClientRect();
    });
    // Rows that are loaded later do not scroll again.
  }, [row, nth, sought]);

  useMarks(root, sought, row, nth);

  const step = (by: number) => {
    if (matches.length) setChosen(matches[(at + by + matches.length) % matches.length] ?? null);
  };
  return (
    <div
      className="find"
      role="search"
      aria-label={words.find.label}
      onKeyDown={(event) => {
        if (event.key !== "Escape") return;
        event.stopPropagation();
        onClose();
      }}
    >
      <input
        ref={field}
        type="search"
        value={text}
        autoFocus
        dir="auto"
        placeholder={words.find.label}
        aria-label={words.find.label}
        onChange={(event) => {
          setText(event.target.value);
          setChosen(null);
        }}
        onKeyDown={(event) => {
          if (event.key !== "Enter" || event.nativeEvent.isComposing) return;
          event.preventDefault();
          step(event.shiftKey ? -1 : 1);
        }}
      />
      <span className="find-count" role="status">
        {!sought ? "" : matches.length ? words.find.count(at + 1, matches.length) : isLoading ? words.find.loading : words.find.none}
      </span>
      <button type="button" className="tool is-small" onClick={() => step(-1)} disabled={!matches.length} aria-label={words.find.previous} title={words.find.previous}>
        <Icon name="send" />
      </button>
      <button type="button" className="tool is-small" onClick={() => step(1)} disabled={!matches.length} aria-label={words.find.next} title={words.find.next}>
        <Icon name="arrowDown" />
      </button>
      <button type="button" className="tool is-small" onClick={onClose} aria-label={words.find.close} title={words.find.close}>
        <Icon name="close" />
      </button>
    </div>
  );
}

/** Marks every match in the rows that are drawn, and the current one in another colour; again when rows are drawn. */
function useMarks(root: RefObject<HTMLElement | null>, sought: string, row: string | undefined, nth: number): void {
  useEffect(() => {
    const element = root.current;
    const { highlights } = globalThis.CSS;
    if (!element || !highlights) return undefined;
    let frame = 0;
    const mark = () => {
      const found: Range[] = [];
      const current: Range[] = [];
      for (const drawn of element.querySelectorAll<HTMLElement>(".thread-list [data-row]")) {
        const ranges = sought ? rangesIn(drawn, sought) : [];
        const own = drawn.dataset["row"] === row ? ranges[Math.min(nth, ranges.length - 1)] : undefined;
        found.push(...ranges.filter((range) => range !== own));
        if (own) current.push(own);
      }
      highlights.set(FOUND, new Highlight(...found));
      highlights.set(CURRENT, new Highlight(...current));
    };
    const later = () => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(mark);
    };
    mark();
    const observer = new MutationObserver(later);
    observer.observe(element, { childList: true, subtree: true, characterData: true });
    return () => {
      cancelAnimationFrame(frame);
      observer.disconnect();
      highlights.delete(FOUND);
      highlights.delete(CURRENT);
    };
  }, [root, sought, row, nth]);
}

/** Where the words stand in the drawn text of a row. Words of different blocks do not join. */
function rangesIn(root: HTMLElement, sought: string): Range[] {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT, (node) => (node.parentElement?.closest("button, .visually-hidden, .when") ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT));
  const nodes: { node: Text; start: number }[] = [];
  let text = "";
  let block: Element | null | undefined;
  while (walker.nextNode()) {
    const node = walker.currentNode as Text;
    const own = node.parentElement?.closest(BLOCKS);
    if (nodes.length && own !== block) text += "\n";
    block = own;
    nodes.push({ node, start: text.length });
    text += node.data;
  }
  const end = (place: number) => nodes.findLast(({ start }) => start < place);
  const begin = (place: number) => nodes.findLast(({ start }) => start <= place);
  return placesOf(text, sought).flatMap((place) => {
    const [from, to] = [begin(place), end(place + sought.length)];
    if (!from || !to) return [];
    const range = document.createRange();
    range.setStart(from.node, Math.min(from.node.length, place - from.start));
    range.setEnd(to.node, Math.min(to.node.length, place + sought.length - to.start));
    return [range];
  });
}
