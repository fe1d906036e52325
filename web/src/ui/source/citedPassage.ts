/**
 * Marks a cited passage in the drawn text. The browser's highlight API colours it, so no element has to change. The
 * blocks of the passage also get an attribute, for browsers without that API and for tests.
 */
import { type RefObject, useEffect, useState } from "react";

import { locate, locateWords } from "../../state/passage";
import type { Passage } from "../../state/route";

const NAME = "cited";
const BLOCKS = "p, li, tr, pre, h3, h4, h5, h6, blockquote, .maths, .bubble";

/**
 * Mark the passage, or the words `found` in it, and remove earlier marks. Returns the first block of it, or null if the
 * passage is not there.
 */
export function markPassage(root: HTMLElement, quote: string, found?: string): HTMLElement | null {
  unmark(root);
  const nodes = textNodes(root);
  const text = nodes.map((node) => node.data).join("\n");
  const passage = locate(text, quote);
  if (!passage) return null;
  const words = found ? locateWords(text, passage, found) : [];
  const ranges = (words.length ? words : [passage]).flatMap(({ start, end }) => rangeOf(nodes, start, end) ?? []);
  if (!ranges.length) return null;
  globalThis.CSS.highlights?.set(NAME, new Highlight(...ranges));
  return markBlocks(root, nodes.filter((node) => ranges.some((range) => range.intersectsNode(node))));
}

/** Mark the heading with this text. Returns it, or null if there is none. */
export function markHeading(root: HTMLElement, title: string): HTMLElement | null {
  unmark(root);
  const wanted = plain(title);
  const heading = [...root.querySelectorAll<HTMLElement>("h2, h3, h4, h5, h6")].find((one) => plain(one.textContent) === wanted);
  heading?.setAttribute("data-cited", "");
  return heading ?? null;
}

/**
 * Call `mark` now, and again when the content has changed: Markdown, coloured code and formulas are drawn later and
 * replace marked text. Returns the function that ends it and removes the marks.
 */
export function keepMarked(root: HTMLElement, mark: () => void): () => void {
  let frame = 0;
  const observer = new MutationObserver(() => {
    cancelAnimationFrame(frame);
    frame = requestAnimationFrame(mark);
  });
  mark();
  observer.observe(root, { childList: true, subtree: true });
  return () => {
    cancelAnimationFrame(frame);
    observer.disconnect();
    unmark(root);
  };
}

function unmark(root: HTMLElement): void {
  globalThis.CSS.highlights?.delete(NAME);
  for (const one of root.querySelectorAll("[data-cited]")) one.removeAttribute("data-cited");
}

/** Scroll to the element and focus it, so that the keyboard and a screen reader continue from there. */
export function show(element: HTMLElement): void {
  element.scrollIntoView({ block: "center" });
  if (!element.hasAttribute("tabindex")) element.tabIndex = -1;
  element.focus({ preventScroll: true });
}

const plain = (text: string | null): string => (text ?? "").replaceAll(/[^\p{L}\p{N}]+/gu, " ").trim().toLowerCase();

function textNodes(root: HTMLElement): Text[] {
  const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
  const nodes: Text[] = [];
  while (walker.nextNode()) nodes.push(walker.currentNode as Text);
  return nodes;
}

/** The range of these offsets in the text of the nodes, joined with one character between two nodes. */
function rangeOf(nodes: readonly Text[], start: number, end: number): Range | null {
  const range = document.createRange();
  let begin = 0;
  let isBegun = false;
  for (const node of nodes) {
    const stop = begin + node.length;
    if (!isBegun && start <= stop) {
      range.setStart(node, Math.max(0, start - begin));
      isBegun = true;
    }
    if (isBegun && end <= stop) {
      range.setEnd(node, Math.max(0, end - begin));
      return range;
    }
    begin = stop + 1;
  }
  return null;
}

function markBlocks(root: HTMLElement, nodes: readonly Text[]): HTMLElement | null {
  const blocks = nodes.flatMap((node) => node.parentElement?.closest<HTMLElement>(BLOCKS) ?? []).filter((block) => root.contains(block));
  for (const block of blocks) block.setAttribute("data-cited", "");
  return blocks[0] ?? null;
}

export type Found = "passage" | "heading" | "nowhere" | null;

/** Marks the passage as soon as `isDrawn` and shows it once. Returns what was found; null while nothing is searched. */
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
    let isShown = false;
    return keepMarked(element, () => {
      const first = mark();
      if (first && !isShown) show(first);
      isShown ||= first !== null;
    });
  }, [root, quote, part, isDrawn]);
  return found;
}
