/** Whether the list follows what grows at its end: it does until the reader turns back, opens something in it, or selects a text. */
import { type RefObject, useCallback, useEffect, useRef, useState } from "react";
import type { VListHandle } from "virtua";

/** Closer to the end than this counts as being there. */
const NEAR = 60;
const BACK = new Set(["ArrowUp", "PageUp", "Home"]);

export interface AutoScroll {
  /** Whether the end is in view, or will be. */
  isAtEnd: boolean;
  /** Go to the end, if that is where the reader is. */
  follow: () => void;
  toEnd: () => void;
  stay: () => void;
  onScroll: (offset: number) => void;
}

export function useAutoScroll(root: RefObject<HTMLElement | null>, list: RefObject<VListHandle | null>): AutoScroll {
  const [isAtEnd, setIsAtEnd] = useState(true);
  const isFollowing = useRef(true);
  const lastOffset = useRef(0);

  const distance = useCallback(() => {
    const handle = list.current;
    return handle ? handle.scrollSize - handle.scrollOffset - handle.viewportSize : 0;
  }, [list]);
  const follow = useCallback(() => {
    const scroller = root.current?.querySelector(".thread-list");
    if (isFollowing.current && scroller && !holdsSelection(scroller)) scroller.scrollTop = scroller.scrollHeight;
    else setIsAtEnd(distance() < NEAR);
  }, [root, distance]);
  const toEnd = useCallback(() => {
    const scroller = root.current?.querySelector(".thread-list");
    if (scroller && holdsSelection(scroller)) getSelection()?.removeAllRanges();
    isFollowing.current = true;
    setIsAtEnd(true);
    follow();
  }, [root, follow]);
  const stay = useCallback(() => {
    isFollowing.current = false;
    setIsAtEnd(false);
  }, []);

  const onScroll = useCallback(
    (offset: number) => {
      const left = distance();
      const isBack = offset < lastOffset.current - 1;
      if (left < NEAR && !isBack) isFollowing.current = true;
      else if (left >= NEAR && isBack) isFollowing.current = false;
      lastOffset.current = offset;
      setIsAtEnd(isFollowing.current || left < NEAR);
    },
    [distance],
  );

  // The list also moves by itself, so a small step back counts only where the reader made it. It counts at once: what grows
  // would otherwise take every small step back again.
  useEffect(() => {
    const element = root.current;
    if (!element) return undefined;
    const turnBack = () => {
      const handle = list.current;
      if (handle && handle.scrollSize > handle.viewportSize + 1) isFollowing.current = false;
    };
    const onWheel = (event: WheelEvent) => event.deltaY < 0 && !event.ctrlKey && turnBack();
    let touchedAt = 0;
    const onTouch = (event: TouchEvent) => {
      const at = event.touches[0]?.clientY ?? 0;
      if (event.type === "touchmove" && at > touchedAt + 2) turnBack();
      touchedAt = at;
    };
    const onKey = (event: KeyboardEvent) => BACK.has(event.key) && !isField(event.target) && turnBack();
    // What is opened is to be read: it must not be pushed out of view by its own height.
    const onClick = (event: MouseEvent) => {
      if (!(event.target instanceof Element) || !event.target.closest("summary") || !isFollowing.current) return;
      isFollowing.current = false;
      requestAnimationFrame(() => requestAnimationFrame(() => onScroll(lastOffset.current)));
    };
    element.addEventListener("wheel", onWheel, { passive: true });
    element.addEventListener("touchstart", onTouch, { passive: true });
    element.addEventListener("touchmove", onTouch, { passive: true });
    element.addEventListener("keydown", onKey);
    element.addEventListener("click", onClick, { capture: true });
    return () => {
      element.removeEventListener("wheel", onWheel);
      element.removeEventListener("touchstart", onTouch);
      element.removeEventListener("touchmove", onTouch);
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
