/**
 * What the page and the frame of a preview say to each other. Neither trusts the other: the frame has no origin.
 *
 * Values in here are for one of the two alone: the script of the frame must be one file, because its policy lets no other run.
 */

export type PreviewKind = "html" | "svg" | "mermaid";

/** To the frame: what to draw. */
export interface TextJob {
  readonly kind: PreviewKind;
  readonly text: string;
  readonly isDark: boolean;
}

/** To the frame: a PDF file, and the script of the worker that reads it, because the frame has no network. */
export interface PdfJob {
  readonly kind: "pdf";
  readonly file: ArrayBuffer;
  readonly worker: ArrayBuffer;
  readonly isDark: boolean;
  readonly language: string;
  /** Later pages are not drawn. */
  readonly maxPages: number;
  /** The name of a page, with the places `{at}` and `{of}`. */
  readonly label: string;
  /** What stands in place of a page that cannot be drawn. */
  readonly failed: string;
}

/** To the frame: a font or a table of characters that it wanted; null if there is none of that name. */
export interface PdfPart {
  readonly kind: "part";
  readonly name: string;
  readonly bytes: ArrayBuffer | null;
}

export type PreviewJob = TextJob | PdfJob | PdfPart;

/**
 * To the page: the frame listens; the drawing has this height; or it cannot be drawn. `reason` is what Mermaid says about
 * its text, or `locked` for a PDF that asks for a password, else it is empty. Of a PDF also: it has this many pages; and a
 * part is wanted to draw it.
 */
export type PreviewReport =
  | { readonly type: "ready" }
  | { readonly type: "drawn"; readonly height: number }
  | { readonly type: "failed"; readonly reason: string }
  | { readonly type: "opened"; readonly pages: number }
  | { readonly type: "wanted"; readonly name: string };

/** Longer texts get no preview: to draw them would take too long. */
export const MAX_CHARS: Readonly<Record<PreviewKind, number>> = { html: 400_000, svg: 400_000, mermaid: 50_000 };
