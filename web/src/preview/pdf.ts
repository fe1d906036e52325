/**
 * Draws a PDF in the frame of a preview, with pdf.js: its pages below each other, each when it comes into view, with its words
 * over the drawing, so that they can be selected and read aloud.
 *
 * A page is a picture and its words. There are no elements for its links, forms, scripts and attachments, so none of them
 * can be used. The file is read in a worker, which ends together with the frame.
 */
import type { PDFDocumentProxy, PDFPageProxy, RenderTask } from "pdfjs-dist";
import libraryAddress from "pdfjs-dist/legacy/build/pdf.min.mjs?url";

import type { PdfJob, PdfPart, PreviewReport } from "./messages";
import { loadScript } from "./scripts";

type Library = typeof import("pdfjs-dist");
declare global {
  var pdfjsLib: Library | undefined;
}

type Report = (message: PreviewReport) => void;

interface Size {
  readonly width: number;
  readonly height: number;
}

/** The space around the pages, as the style of the frame has it. */
const MARGIN_PX = 12;
/** A page that is much longer than it is wide is drawn narrower. */
const MAX_HEIGHT_PX = 4_000;
/** A canvas of more pixels takes too much memory on a phone; the page is drawn less sharp. */
const MAX_PIXELS = 12_000_000;
/** A larger picture inside of a page is left out. */
const MAX_PICTURE_PIXELS = 100_000_000;
/** Pages before and after those in view that are drawn too, and that keep their drawing. */
const AHEAD = 1;
const KEPT = 4;

export async function drawPdf(job: PdfJob, report: Report): Promise<void> {
  await loadScript(libraryAddress, { type: "module" });
  const library = globalThis.pdfjsLib;
  if (!library) throw new Error();
  const pdf = await openPdf(library, job, report);
  const pages = Math.min(pdf.numPages, job.maxPages);
  const first = (await pdf.getPage(1)).getViewport({ scale: 1 });
  report({ type: "opened", pages: pdf.numPages });
  document.documentElement.lang = job.language;
  const main = document.createElement("main");
  main.className = "pdf";
  const nameOf = (at: number) => job.label.replace("{at}", at.toLocaleString(job.language)).replace("{of}", pdf.numPages.toLocaleString(job.language));
  const list = Array.from({ length: pages }, (_, at) => new PageView(library, pdf, at + 1, nameOf(at + 1), job.failed, first));
  main.append(...list.map((page) => page.element));
  document.body.replaceChildren(main);
  new DrawnPages(main, list);
}

async function openPdf(library: Library, { file, worker }: PdfJob, report: Report): Promise<PDFDocumentProxy> {
  const script = URL.createObjectURL(new Blob([worker], { type: "text/javascript" }));
  const port = new Worker(script);
  const broken = new Promise<never>((_, reject) => port.addEventListener("error", () => reject(new Error())));
  const opening = library.getDocument({
    data: new Uint8Array(file),
    worker: new library.PDFWorker({ port: port as unknown as null, verbosity: library.VerbosityLevel.ERRORS }),
    verbosity: library.VerbosityLevel.ERRORS,
    BinaryDataFactory: partsFrom(report),
    // The policy of the frame allows no WebAssembly and no requests.
    useWasm: false,
    useWorkerFetch: false,
    enableXfa: false,
    maxImageSize: MAX_PICTURE_PIXELS,
  });
  try {
    return await Promise.race([opening.promise, broken]);
  } catch (error) {
    port.terminate();
    throw new Error(error instanceof Error && error.name === "PasswordException" ? "locked" : "");
  } finally {
    URL.revokeObjectURL(script);
  }
}

const parts = new Map<string, Promise<ArrayBuffer | null>>();
const awaited = new Map<string, (bytes: ArrayBuffer | null) => void>();

/** How pdf.js gets fonts and tables of characters: the page loads them for the frame, each of them once. */
function partsFrom(report: Report) {
  return class {
    async fetch({ filename }: { filename: string }): Promise<Uint8Array> {
      const part = parts.get(filename) ?? new Promise<ArrayBuffer | null>((resolve) => awaited.set(filename, resolve));
      if (!parts.has(filename)) report({ type: "wanted", name: filename });
      parts.set(filename, part);
      const bytes = await part;
      if (!bytes) throw new Error(`There is no ${filename}`);
      return new Uint8Array(bytes.slice());
    }
  };
}

export function receivePart({ name, bytes }: PdfPart): void {
  awaited.get(name)?.(bytes);
}

/** Draws the pages that are in view, and those next to them. Takes the drawings of far pages away. */
class DrawnPages {
  readonly #pages: readonly PageView[];
  readonly #seen = new Set<number>();
  #width = 0;

  constructor(main: HTMLElement, pages: readonly PageView[]) {
    this.#pages = pages;
    const places = new Map<Element, number>(pages.map((page, at) => [page.element, at]));
    const observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        const at = places.get(target) ?? 0;
        if (isIntersecting) this.#seen.add(at);
        else this.#seen.delete(at);
      }
      this.#draw();
    });
    this.#fit(main.clientWidth);
    for (const { element } of pages) observer.observe(element);
    new ResizeObserver(() => this.#fit(main.clientWidth)).observe(main);
  }

  #fit(width: number): void {
    const inner = width - 2 * MARGIN_PX;
    if (inner <= 0 || inner === this.#width) return;
    this.#width = inner;
    for (const page of this.#pages) page.fit(inner);
    this.#draw();
  }

  #draw(): void {
    if (!this.#seen.size) return;
    const [from, to] = [Math.min(...this.#seen), Math.max(...this.#seen)];
    for (const [at, page] of this.#pages.entries()) {
      if (at >= from - AHEAD && at <= to + AHEAD) void page.draw();
      else if (at < from - KEPT || at > to + KEPT) page.clear();
    }
  }
}

/** One page: its name, and below it the sheet with the drawing and the words. */
class PageView {
  readonly element = document.createElement("section");
  readonly #library: Library;
  readonly #pdf: PDFDocumentProxy;
  readonly #number: number;
  readonly #failed: string;
  readonly #sheet = document.createElement("div");
  #size: Size;
  #width = 0;
  /** The width for which it is drawn, or being drawn; 0 if it is not. */
  #drawnFor = 0;
  #task: RenderTask | null = null;
  #canvas: HTMLCanvasElement | null = null;
  #hasWords = false;

  /** `size` is that of the first page, until this one is drawn. */
  constructor(library: Library, pdf: PDFDocumentProxy, number: number, name: string, failed: string, size: Size) {
    this.#library = library;
    this.#pdf = pdf;
    this.#number = number;
    this.#failed = failed;
    this.#size = size;
    const heading = document.createElement("h2");
    heading.dir = "auto";
    heading.textContent = name;
    this.#sheet.className = "sheet";
    this.element.append(heading, this.#sheet);
  }

  fit(width: number): void {
    this.#width = width;
    const scale = this.#scale();
    this.#sheet.style.setProperty("--total-scale-factor", String(scale));
    this.#sheet.style.width = `${Math.floor(this.#size.width * scale)}px`;
    this.#sheet.style.height = `${Math.floor(this.#size.height * scale)}px`;
  }

  async draw(): Promise<void> {
    const width = this.#width;
    if (this.#drawnFor === width) return;
    this.#drawnFor = width;
    this.#task?.cancel();
    try {
      const page = await this.#pdf.getPage(this.#number);
      this.#size = page.getViewport({ scale: 1 });
      this.fit(width);
      if (this.#drawnFor === width) await this.#drawPicture(page);
      if (!this.#hasWords) await this.#writeWords(page);
    } catch (error) {
      if (!(error instanceof Error && error.name === "RenderingCancelledException")) this.#sheet.replaceChildren(this.#failed);
    }
  }

  /** Takes the drawing away. The words stay: they may be selected, and the browser can find them. */
  clear(): void {
    this.#drawnFor = 0;
    this.#task?.cancel();
    this.#canvas?.remove();
    this.#canvas = null;
  }

  async #drawPicture(page: PDFPageProxy): Promise<void> {
    const viewport = page.getViewport({ scale: this.#scale() });
    const sharpness = Math.min(devicePixelRatio, Math.sqrt(MAX_PIXELS / (viewport.width * viewport.height)));
    const canvas = document.createElement("canvas");
    canvas.width = Math.max(1, Math.floor(viewport.width * sharpness));
    canvas.height = Math.max(1, Math.floor(viewport.height * sharpness));
    canvas.ariaHidden = "true";
    this.#task = page.render({ canvas, viewport, transform: [sharpness, 0, 0, sharpness, 0, 0], annotationMode: this.#library.AnnotationMode.ENABLE });
    await this.#task.promise;
    this.#canvas?.remove();
    this.#canvas = canvas;
    this.#sheet.prepend(canvas);
  }

  async #writeWords(page: PDFPageProxy): Promise<void> {
    this.#hasWords = true;
    const container = document.createElement("div");
    container.className = "words";
    const viewport = page.getViewport({ scale: this.#scale() });
    await new this.#library.TextLayer({ textContentSource: page.streamTextContent(), container, viewport }).render();
    this.#sheet.append(container);
  }

  #scale(): number {
    return Math.min(this.#width / this.#size.width, MAX_HEIGHT_PX / this.#size.height);
  }
}
