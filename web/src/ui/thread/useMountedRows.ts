/** Rows that must stay in the document out of view: the one with the focus, and those of the selection. */
import { type RefObject, useEffect, useMemo, useState } from "react";

import type { MessageRow } from "@turnkeep/client";

/** Of a longer selection only the first and the last row are kept. */
const MAX_ROWS = 200;

export function useMountedRows(root: RefObject<HTMLElement | null>, rows: readonly MessageRow[]): readonly number[] {
  const [keys, setKeys] = useState("");
  useEffect(() => {
    const look = () => setKeys(mountedKeys(root.current));
    document.addEventListener("selectionchange", look);
    document.addEventListener("focusin", look);
    document.addEventListener("focusout", look);
    return () => {
      document.removeEventListener("selectionchange", look);
      document.removeEventListener("focusin", look);
      document.removeEventListener("focusout", look);
    };
  }, [root]);
  return useMemo(() => {
    const [focused, from, to] = keys.split(" ").map((key) => rows.findIndex((row) => row.key === key));
    return [...new Set([focused ?? -1, ...between(from ?? -1, to ?? -1)])].filter((place) => place >= 0).sort((a, b) => a - b);
  }, [keys, rows]);
}

/** The keys of the row with the focus and of the rows at both ends of the selection, as one text that is easy to compare. */
function mountedKeys(root: HTMLElement | null): string {
  if (!root) return "";
  const selection = getSelection();
  const ends = selection && !selection.isCollapsed ? [selection.anchorNode, selection.focusNode] : [null, null];
  return [document.activeElement, ...ends].map((node) => keyOf(root, node)).join(" ");
}

function keyOf(root: HTMLElement, node: Node | null): string {
  if (!node || !root.contains(node)) return "";
  return (node instanceof Element ? node : node.parentElement)?.closest<HTMLElement>(".row")?.dataset["row"] ?? "";
}

export function between(from: number, to: number): number[] {
  if (from < 0 || to < 0) return [from, to];
  const [first, last] = [Math.min(from, to), Math.max(from, to)];
  return last - first < MAX_ROWS ? Array.from({ length: last - first + 1 }, (_, at) => first + at) : [first, last];
}
