/**
 * Keeps the list at its end while an answer grows, until the reader scrolls back, opens a step, or selects text. A message
 * that is shown, because it was found or is cited, stays in view until the reader scrolls.
 */
import { type RefObject, useCallback, useEffect, useRef, useState } from "react";
import type { VListHandle } from "virtua";

/** Fewer pixels from the end than this count as being at the end. */
const NEAR_END_PX = 60;
const SCROLL_BACK_KEYS = new Set(["ArrowUp", "PageUp", "Home"]);

export interface AutoScroll {
  /** Whether the end is in view, or the list is about to scroll there. */
  isAtEnd: boolean;
  /** Scroll to the end if the list follows it. */
  follow: () => void;
  toEnd: () => void;
  /** A message is about to be shown: the list does not follow its end until the reader scrolls there. */
  stay: () => void;
  onScroll: (offset: number) => void;
}

export function useAutoScroll(root: RefObject<HTMLElement | null>, list: RefObject<VListHandle | null>): AutoScroll {
  const [isAtEnd, setIsAtEnd] = useState(true);
  const isFollowingEnd = useRef(true);
  /** The list may still scroll to its end after `stay`, by what was begun before it. That is not the reader. */
  const isStaying = useRef(false);
  const lastOffset = useRef(0);

  const distance = useCallback(() => {
    const handle = list.current;
    return handle ? handle.scrollSize - handle.scrollOffset - handle.viewportSize : 0;
  }, [list]);
  const follow = useCallback(() => {
    const scroller = root.current?.querySelector(".thread-list");
    if (isFollowingEnd.current && scroller && !holdsSelection(scroller)) scroller.scrollTop = scroller.scrollHeight;
    else setIsAtEnd(distance() < NEAR_END_PX);
  }, [root, distance]);
  const toEnd = useCallback(() => {
    const scroller = root.current?.querySelector(".thread-list");
    if (scroller && holdsSelection(scroller)) getSelection()?.removeAllRanges();
    isFollowingEnd.current = true;
    isStaying.current = false;
    setIsAtEnd(true);
    follow();
  }, [root, follow]);
  const stay = useCallback(() => {
    isFollowingEnd.current = false;
    isStaying.current = true;
    setIsAtEnd(distance() < NEAR_END_PX);
  }, [distance]);

  const onScroll = useCallback(
    (offset: number) => {
      const left = distance();
      const isBack = offset < lastOffset.current - 1;
      if (left < NEAR_END_PX && !isBack && !isStaying.current) isFollowingEnd.current = true;
      else if (left >= NEAR_END_PX && isBack) isFollowingEnd.current = false;
      lastOffset.current = offset;
      setIsAtEnd(isFollowingEnd.current || left < NEAR_END_PX);
    },
    [distance],
  );

  // The list also scrolls by itself, so a small scroll back counts only if it comes from the reader's input. It counts at
  // once: otherwise the growing answer would undo it.
  useEffect(() => {
    const element = root.current;
    if (!element) return undefined;
    const scrollBack = () => {
      const handle = list.current;
      if (handle && handle.scrollSize > handle.viewportSize + 1) isFollowingEnd.current = false;
    };
    const leave = () => void (isStaying.current = false);
    const onWheel = (event: WheelEvent) => {
      leave();
      if (event.deltaY < 0 && !event.ctrlKey) scrollBack();
    };
    let touchedAt = 0;
    const onTouch = (event: TouchEvent) => {
      leave();
      const at = event.touches[0]?.clientY ?? 0;
      if (event.type === "touchmove" && at > touchedAt + 2) scrollBack();
      touchedAt = at;
    };
    const onKey = (event: KeyboardEvent) => {
      if (isField(event.target)) return;
      leave();
      if (SCROLL_BACK_KEYS.has(event.key)) scrollBack();
    };
    // A step that the reader opens must not be scrolled out of view by its own height.
    const onClick = (event: MouseEvent) => {
      if (!(event.target instanceof Element) || !event.target.closest("summary") || !isFollowingEnd.current) return;
      isFollowingEnd.current = false;
      requestAnimationFrame(() => requestAnimationFrame(() => onScroll(lastOffset.current)));
    };
    element.addEventListener("wheel", onWheel, { passive: true });
    element.addEventListener("touchstart", onTouch, { passive: true });
    element.addEventListener("touchmove", onTouch, { passive: true });
    element.addEventListener("pointerdown", leave);
    element.addEventListener("keydown", onKey);
    element.addEventListener("click", onClick, { capture: true });
    return () => {
      element.removeEventListener("wheel", onWheel);
      element.removeEventListener("touchstart", onTouch);
      element.removeEventListener("touchmove", onTouch);
      element.removeEventListener("pointerdown", leave);
      element.removeEventListener("keydown", onKey);
      element.removeEventListener("click", onClick, { capture: true });
    };
  }, [root, list, onScroll]);

  return { isAtEnd, follow, toEnd, stay, onScroll };
}

const isField = (target: EventTarget | null): boolean => target instanceof HTMLTextAreaElement || target instanceof HTMLInputElement;

function holdsSelection(element: Element): boolean {
  const selection = getSelection();
  return selection !== null && !selection.isCollapsed && element.contains(selection.anchorNode);
}
