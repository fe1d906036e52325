/** What the page and the frame of a preview say to each other. Neither trusts the other: the frame has no origin. */

export type PreviewKind = "html" | "svg" | "mermaid";

/** To the frame: what to draw. */
export interface PreviewJob {
  readonly kind: PreviewKind;
  readonly text: string;
  readonly isDark: boolean;
}

/**
 * To the page: the frame listens; the drawing has this height; or it cannot be drawn. `reason` is what Mermaid says about
 * its text, else it is empty.
 */
export type PreviewReport =
  | { readonly type: "ready" }
  | { readonly type: "drawn"; readonly height: number }
  | { readonly type: "failed"; readonly reason: string };

/** Longer texts get no preview: to draw them would take too long. */
export const MAX_CHARS: Readonly<Record<PreviewKind, number>> = { html: 400_000, svg: 400_000, mermaid: 50_000 };
