/**
 * The script of `/preview`: it draws what a model or a file has written, in a document without an origin, a network and the
 * credentials of the user. `bundled_page.py` says which scripts run there: this one, Mermaid and pdf.js.
 *
 * An HTML text is drawn in a second frame inside of this one, in which no script runs at all. An SVG is drawn as a picture,
 * which runs no script and loads nothing. Mermaid makes its SVG from a language without scripts.
 */
import mermaidAddress from "../../node_modules/@mermaid-js/tiny/dist/mermaid.tiny.js?url";

import { MAX_CHARS, type PdfJob, type PreviewJob, type PreviewReport, type TextJob } from "./messages";
import { drawPdf, receivePart } from "./pdf";
import { loadScript } from "./scripts";

interface Mermaid {
  initialize(settings: object): void;
  render(id: string, text: string): Promise<{ svg: string }>;
}

declare global {
  var mermaid: Mermaid | undefined;
}

addEventListener("message", ({ source, data }: MessageEvent<PreviewJob>) => {
  if (source !== parent) return;
  if (data.kind === "part") return receivePart(data);
  (data.kind === "pdf" ? drawPages(data) : draw(data)).then(reportHeight, (error: unknown) => report({ type: "failed", reason: error instanceof Error ? error.message : String(error) }));
});
new ResizeObserver(reportHeight).observe(document.body);
report({ type: "ready" });

function report(message: PreviewReport): void {
  // The page cannot be named: this document does not know its origin. There is nothing in the message to keep secret.
  parent.postMessage(message, "*");
}

function reportHeight(): void {
  const drawing = document.body.firstElementChild;
  if (drawing) report({ type: "drawn", height: Math.ceil(drawing.getBoundingClientRect().height) });
}

async function drawPages(job: PdfJob): Promise<void> {
  document.documentElement.classList.toggle("is-dark", job.isDark);
  await drawPdf(job, report);
}

async function draw({ kind, text, isDark }: TextJob): Promise<void> {
  if (text.length > MAX_CHARS[kind]) throw new Error();
  document.documentElement.classList.toggle("is-dark", isDark && kind === "mermaid");
  switch (kind) {
    case "html":
      return drawHtml(text);
    case "svg":
      return await drawSvg(text);
    case "mermaid":
      return await drawMermaid(text, isDark);
    default:
      return kind satisfies never;
  }
}

/** Elements that load, embed or redirect. The frame refuses what they would do; without them nothing is tried. */
const LEFT_OUT = "script, noscript, link, meta, base, iframe, frame, frameset, object, embed, applet, portal, template";
/** The policy of this document holds for the frame as well. It is said again, in case that it is ever drawn elsewhere. */
const POLICY = `<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; font-src data:; media-src data:">`;

function drawHtml(text: string): void {
  const page = parsed(text);
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "");
  frame.title = page.title || "HTML";
  frame.srcdoc = `<!doctype html>${POLICY}<meta name="color-scheme" content="light">${page.documentElement.outerHTML}`;
  document.body.replaceChildren(frame);
}

/** The text as elements that are in no window: nothing of it runs or is loaded. What would do so later is left out. */
function parsed(text: string): Document {
  const page = new DOMParser().parseFromString(text, "text/html");
  for (const element of page.querySelectorAll(LEFT_OUT)) element.remove();
  for (const element of page.querySelectorAll("*"))
    for (const { name, value } of [...element.attributes]) if (isUnwanted(name, value)) element.removeAttribute(name);
  return page;
}

const ADDRESSES = new Set(["href", "xlink:href", "src", "srcset", "action", "formaction", "poster", "background", "data", "ping"]);

/** Whether an attribute would run a script, load something, or lead away. Pictures inside of the text stay, and links within it. */
function isUnwanted(name: string, value: string): boolean {
  if (name.startsWith("on")) return true;
  return ADDRESSES.has(name) && !/^\s*(?:#|data:(?:image|font|audio|video)\/)/i.test(value);
}

async function drawSvg(text: string): Promise<void> {
  const picture = new Image();
  picture.alt = "";
  const isNamed = /<svg[^>]*\sxmlns\s*=/.test(text);
  const source = isNamed ? text : text.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"');
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
  await picture.decode().catch(() => {
    throw new Error();
  });
  place(picture);
}

async function drawMermaid(text: string, isDark: boolean): Promise<void> {
  const library = globalThis.mermaid ?? (await loadMermaid());
  library.initialize({
    startOnLoad: false,
    securityLevel: "strict",
    suppressErrorRendering: true,
    maxTextSize: MAX_CHARS.mermaid,
    theme: isDark ? "dark" : "neutral",
    // Flat, and labels of lines on the colour of the page: the dark theme of the library has white shadows and grey boxes.
    themeVariables: { dropShadow: "none", ...(isDark ? { edgeLabelBackground: "#121614" } : {}) },
    fontFamily: 'ui-sans-serif, system-ui, "Segoe UI", sans-serif',
  });
  const { svg } = await library.render("drawing", text);
  const drawn = parsed(svg).body.firstElementChild;
  if (!drawn) throw new Error();
  place(drawn);
}

function place(drawing: Element): void {
  const main = document.createElement("main");
  main.append(drawing);
  document.body.replaceChildren(main);
}

async function loadMermaid(): Promise<Mermaid> {
  await loadScript(mermaidAddress);
  if (!globalThis.mermaid) throw new Error();
  return globalThis.mermaid;
}
