/** Draws markdown tokens as elements, one by one. There is no innerHTML anywhere. */
import type { Token, Tokens } from "marked";
import { createElement, Fragment, lazy, memo, type ReactNode, Suspense, useEffect, useMemo, useRef, useState } from "react";

import { saveText } from "../../effects/export";
import type { PreviewKind } from "../../preview/messages";
import { words } from "../../words";
import { CopyButton } from "../CopyButton";
import { Icon } from "../Icon";
import { useOpened } from "../thread/Disclosure";
import { decodeEntities, safeHref } from "./links";
import { type CitationToken, type MathsToken, parse, type Parsed, parseGrowing, pieces } from "./parser";

const PreviewFrame = lazy(() => import("./PreviewFrame"));

export interface Cites {
  /** The element for `[number]`, or null if no source has this number; then it stays plain text. */
  draw: (number: number) => ReactNode;
}

export interface MarkdownProps {
  text: string;
  isGrowing?: boolean;
  cites?: Cites | undefined;
}

export function Markdown({ text, isGrowing = false, cites }: MarkdownProps) {
  const before = useRef<Parsed | null>(null);
  const tokens = useMemo(() => {
    if (!isGrowing) return parse(text);
    before.current = parseGrowing(before.current, text);
    return before.current.tokens;
  }, [text, isGrowing]);
  return (
    <div className={isGrowing ? "prose is-growing" : "prose"}>
      {tokens.map((token, at) => (
        <Block key={at} token={token} cites={cites} isOpen={isGrowing && at === tokens.length - 1} />
      ))}
    </div>
  );
}

interface BlockProps {
  token: Token;
  cites: Cites | undefined;
  /** Whether the block may still grow. */
  isOpen: boolean;
}

const Block = memo(
  function Block({ token, cites, isOpen }: BlockProps) {
    return drawBlock(token, cites, isOpen, "auto");
  },
  (a, b) => a.token.raw === b.token.raw && a.token.type === b.token.type && a.cites === b.cites && a.isOpen === b.isOpen,
);

/**
 * Each outermost block is written from the side that its first letter asks for. The blocks inside of it follow it: an
 * element with a direction of its own would not count for the one around it.
 */
type Direction = "auto" | undefined;

function drawBlock(token: Token, cites: Cites | undefined, isOpen: boolean, dir: Direction): ReactNode {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      // The page itself uses the first two levels.
      return createElement(`h${Math.min((token as Tokens.Heading).depth + 2, 6)}`, { dir }, inline(token.tokens, cites));
    case "paragraph":
      return <p dir={dir}>{inline(token.tokens, cites)}</p>;
    case "text":
      return token.tokens ? inline(token.tokens, cites) : drawText((token as Tokens.Text).text);
    case "code": {
      const code = token as Tokens.Code;
      return <Code text={code.text} language={code.lang?.trim().split(/\s+/)[0] ?? ""} isOpen={isOpen} />;
    }
    case "maths":
      return <Maths text={(token as MathsToken).text} isBlock />;
    case "blockquote":
      return <blockquote dir={dir}>{blocks(token.tokens, cites, isOpen)}</blockquote>;
    case "list":
      return drawList(token as Tokens.List, cites, isOpen, dir);
    case "table":
      return <TableBlock isOpen={isOpen}>{drawTable(token as Tokens.Table, cites, dir)}</TableBlock>;
    case "hr":
      return <hr />;
    case "html":
      return (
        <p className="raw" dir={dir}>
          {token.raw.trimEnd()}
        </p>
      );
    default:
      return <p dir={dir}>{token.raw}</p>;
  }
}

/** Blocks inside of another one. If that one may still grow, so may its last block. */
function blocks(tokens: Token[] | undefined, cites: Cites | undefined, isOpen: boolean): ReactNode {
  return tokens?.map((token, at) => <Fragment key={at}>{drawBlock(token, cites, isOpen && at === tokens.length - 1, undefined)}</Fragment>);
}

function drawList(list: Tokens.List, cites: Cites | undefined, isOpen: boolean, dir: Direction): ReactNode {
  const items = list.items.map((item, at) => (
    <li key={at} className={item.task ? "task" : undefined}>
      {item.task && <input type="checkbox" checked={item.checked ?? false} disabled readOnly aria-label={item.checked ? "done" : "to do"} />}
      {blocks(item.tokens.filter((token) => token.type !== "checkbox"), cites, isOpen && at === list.items.length - 1)}
    </li>
  ));
  if (!list.ordered) return <ul dir={dir}>{items}</ul>;
  return (
    <ol dir={dir} start={list.start === "" ? undefined : Number(list.start)}>
      {items}
    </ol>
  );
}

function drawTable(table: Tokens.Table, cites: Cites | undefined, dir: Direction): ReactNode {
  const cell = (one: Tokens.TableCell, at: number, isHead: boolean) =>
    createElement(isHead ? "th" : "td", { key: at, className: one.align ? `to-${one.align}` : undefined, ...(isHead ? { scope: "col" } : {}) }, inline(one.tokens, cites));
  return (
    <table dir={dir}>
      <thead>
        <tr>{table.header.map((one, at) => cell(one, at, true))}</tr>
      </thead>
      <tbody>
        {table.rows.map((row, at) => (
          <tr key={at}>{row.map((one, place) => cell(one, place, false))}</tr>
        ))}
      </tbody>
    </table>
  );
}

/** A table, and once it is complete the buttons that give it to a spreadsheet. */
function TableBlock({ isOpen, children }: { isOpen: boolean; children: ReactNode }) {
  const place = useRef<HTMLDivElement>(null);
  const csv = async () => (await import("./copies")).csvOf(place.current?.querySelector("table") ?? null);
  return (
    <div className="table-block">
      <div ref={place} className="table" role="region" aria-label={words.thread.table} tabIndex={0}>
        {children}
      </div>
      {!isOpen && (
        <div className="table-tools">
          <CopyButton text={csv} label={words.thread.copyCsv} />
          <button type="button" className="tool" onClick={() => void csv().then(saveCsv)} aria-label={words.thread.saveCsv} title={words.thread.saveCsv}>
            <Icon name="download" />
          </button>
        </div>
      )}
    </div>
  );
}

const saveCsv = (text: string): void => saveText(`${words.thread.tableFile}.csv`, text, "text/csv");

function inline(tokens: Token[] | undefined, cites: Cites | undefined): ReactNode {
  return tokens?.map((token, at) => <Fragment key={at}>{drawInline(token, cites)}</Fragment>);
}

function drawInline(token: Token, cites: Cites | undefined): ReactNode {
  switch (token.type) {
    case "text":
      return token.tokens ? inline(token.tokens, cites) : drawText((token as Tokens.Text).text);
    case "escape":
      return (token as Tokens.Escape).text;
    case "strong":
      return <strong>{inline(token.tokens, cites)}</strong>;
    case "em":
      return <em>{inline(token.tokens, cites)}</em>;
    case "del":
      return <del>{inline(token.tokens, cites)}</del>;
    case "codespan":
      return <code dir="ltr">{(token as Tokens.Codespan).text}</code>;
    case "br":
      return <br />;
    case "maths":
      return <Maths text={(token as MathsToken).text} isBlock={false} />;
    case "citation":
      return drawCitation(token as CitationToken, cites);
    case "link":
      return drawLink((token as Tokens.Link).href, inline(token.tokens, cites));
    case "image": {
      // A remote image would tell its server who reads this, so the page shows a link and does not load it.
      const image = token as Tokens.Image;
      return drawLink(image.href, `${decodeEntities(image.text) || words.thread.remoteImage} ↗`);
    }
    case "html":
      return /^<br\s*\/?>$/i.test(token.raw) ? <br /> : token.raw;
    default:
      return token.raw;
  }
}

/** A long text as several nodes. While it grows, only the last node changes, so a selection in the others stays. */
function drawText(text: string): ReactNode {
  return <>{pieces(decodeEntities(text))}</>;
}

function drawLink(href: string, text: ReactNode): ReactNode {
  const safe = safeHref(href);
  if (safe === null) return <span className="dead-link">{text}</span>;
  return (
    <a href={safe} target="_blank" rel="noopener noreferrer nofollow" title={safe}>
      {text}
    </a>
  );
}

function drawCitation(token: CitationToken, cites: Cites | undefined): ReactNode {
  return cites?.draw(token.number) ?? token.raw;
}

// --- code and formulas

type Coloured = { language: string; text: string; nodes: ReactNode };

/** Longer code is not coloured: it would take too long. */
const MAX_CHARS = 60_000;
/** A growing block is coloured again when nothing was added for this long. */
const PAUSE_MS = 120;

/** What a block of this language can be drawn as; null for code that is only read. */
function previewKind(language: string, text: string): PreviewKind | null {
  const name = language.toLowerCase();
  if (name === "mermaid") return text.length > 50_000 ? null : "mermaid";
  if (text.length > 400_000) return null;
  if (name === "html" || name === "htm" || name === "xhtml") return "html";
  return name === "svg" || (name === "xml" && /^\s*(?:<\?xml[^>]*>\s*)?<svg[\s>]/.test(text)) ? "svg" : null;
}

/**
 * A code block: its language, its buttons, and colours once the highlighter has been loaded. Buttons that look at the whole
 * text come when it is complete: nothing is drawn while it is written.
 */
export const Code = memo(function Code({ text, language, isOpen }: { text: string; language: string; isOpen: boolean }) {
  const coloured = useColoured(text, language, isOpen);
  const [isPreview, setIsPreview] = useOpened(() => `preview:${text}`);
  const [isWrapped, setIsWrapped] = useOpened(() => `wrap:${text}`);
  const kind = isOpen ? null : previewKind(language, text);
  const isDrawn = kind !== null && isPreview;
  return (
    <figure className={isWrapped ? "code is-wrapped" : "code"} dir="ltr">
      <figcaption>
        <span className="code-language">{language || "text"}</span>
        {kind && (
          <button type="button" className="code-switch" aria-pressed={isDrawn} onClick={() => setIsPreview(!isPreview)}>
            <Icon name="eye" />
            {words.preview.show}
          </button>
        )}
        {!isOpen && !isDrawn && (
          <button type="button" className="tool" aria-pressed={isWrapped} onClick={() => setIsWrapped(!isWrapped)} aria-label={words.thread.wrap} title={words.thread.wrap}>
            <Icon name="wrap" />
          </button>
        )}
        <CopyButton text={text} label={words.thread.copyCode} />
      </figcaption>
      {isDrawn && (
        <Suspense fallback={<p className="preview-note">{words.preview.loading}</p>}>
          <PreviewFrame kind={kind} text={text} />
        </Suspense>
      )}
      {/* On paper the code is printed, so it stays in the document. */}
      <pre tabIndex={0} aria-label={language || words.thread.code} role="region" hidden={isDrawn}>
        <code>
          {coloured.nodes}
          {coloured.rest}
        </code>
      </pre>
    </figure>
  );
});

/** The coloured code, and the rest that was added since and is not coloured yet. */
function useColoured(text: string, language: string, isOpen: boolean): { nodes: ReactNode; rest: string } {
  const [coloured, setColoured] = useState<Coloured | null>(null);
  useEffect(() => {
    if (!language || text.length > MAX_CHARS) return undefined;
    let isCurrent = true;
    const timer = setTimeout(() => {
      void import("./highlight").then(({ paint }) => {
        const nodes = isCurrent ? paint(text, language) : null;
        if (nodes !== null) setColoured({ language, text, nodes });
      });
    }, isOpen ? PAUSE_MS : 0);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [text, language, isOpen]);
  if (!coloured || coloured.language !== language || !text.startsWith(coloured.text)) return { nodes: null, rest: text };
  return { nodes: coloured.nodes, rest: text.slice(coloured.text.length) };
}

/** A formula: its source until the code for formulas has been loaded, and also where it cannot be set. */
const Maths = memo(function Maths({ text, isBlock }: { text: string; isBlock: boolean }) {
  const element = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    let isCurrent = true;
    void import("./formulas").then(({ drawFormula }) => {
      if (isCurrent && element.current) drawFormula(element.current, text, isBlock);
    });
    return () => {
      isCurrent = false;
    };
  }, [text, isBlock]);
  // KaTeX changes the children of the element behind React's back, so each formula gets a new element.
  return (
    <span key={text} ref={element} dir="ltr" className={isBlock ? "maths is-block" : "maths"}>
      {text}
    </span>
  );
});
