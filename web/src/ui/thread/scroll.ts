/** The frames in which a list that draws only what is in view may still move by itself, while it measures its rows. */
const UNSTEADY_FRAMES = 30;
/** After so many frames a row that cannot be drawn is given up. */
const MOST_FRAMES = 600;

/**
 * Scrolls the list until the place is in view and stays there, also one in the middle of a long message. The list loses a
 * scroll to a row when earlier messages arrive before it has heard of that scroll, so `scrollToRow` is called in each
 * frame until the row is drawn and has a place. Ends when the reader does something.
 */
export function scrollIntoView(root: HTMLElement, scrollToRow: () => void, place: () => DOMRect | undefined): () => void {
  const list = root.querySelector(".thread-list");
  const ended = new AbortController();
  const end = () => ended.abort();
  let [steady, left] = [UNSTEADY_FRAMES, MOST_FRAMES];
  const look = () => {
    if (!list || steady <= 0 || left <= 0) end();
    if (!list || ended.signal.aborted) return;
    left -= 1;
    const [at, view] = [place(), list.getBoundingClientRect()];
    if (at) steady -= 1;
    else scrollToRow();
    if (at && (at.top < view.top || at.bottom > view.bottom)) list.scrollTop += at.top - view.top - view.height / 3;
    requestAnimationFrame(look);
  };
  for (const type of ["wheel", "touchmove", "pointerdown", "keydown"]) root.addEventListener(type, end, { passive: true, signal: ended.signal });
  requestAnimationFrame(look);
  return end;
}
