/** Draws markdown tokens as elements, one by one. There is no innerHTML anywhere. */
import type { Token, Tokens } from "marked";
import { createElement, Fragment, memo, type ReactNode, useEffect, useMemo, useRef, useState } from "react";

import { words } from "../../words";
import { CopyButton } from "../CopyButton";
import { type CitationToken, decodeEntities, type MathsToken, parse, type Parsed, parseGrowing, pieces, safeHref } from "./parse";

export interface Cites {
  /** What stands for `[number]`; null: it cites nothing, and is plain text. */
  draw: (number: number) => ReactNode;
}

interface Props {
  text: string;
  isGrowing?: boolean;
  cites?: Cites | undefined;
}

export function Markdown({ text, isGrowing = false, cites }: Props) {
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
  /** Whether more of it may still come. */
  isOpen: boolean;
}

const Block = memo(
  function Block({ token, cites, isOpen }: BlockProps) {
    return drawBlock(token, cites, isOpen);
  },
  (a, b) => a.token.raw === b.token.raw && a.token.type === b.token.type && a.cites === b.cites && a.isOpen === b.isOpen,
);

function drawBlock(token: Token, cites: Cites | undefined, isOpen: boolean): ReactNode {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      // The page itself has the first two levels.
      return createElement(`h${Math.min((token as Tokens.Heading).depth + 2, 6)}`, null, inline(token.tokens, cites));
    case "paragraph":
      return <p>{inline(token.tokens, cites)}</p>;
    case "text":
      return token.tokens ? inline(token.tokens, cites) : drawText((token as Tokens.Text).text);
    case "code": {
      const code = token as Tokens.Code;
      return <Code text={code.text} language={code.lang?.trim().split(/\s+/)[0] ?? ""} isOpen={isOpen} />;
    }
    case "maths":
      return <Maths text={(token as MathsToken).text} isBlock />;
    case "blockquote":
      return <blockquote>{blocks(token.tokens, cites)}</blockquote>;
    case "list":
      return drawList(token as Tokens.List, cites);
    case "table":
      return drawTable(token as Tokens.Table, cites);
    case "hr":
      return <hr />;
    case "html":
      return <p className="raw">{token.raw.trimEnd()}</p>;
    default:
      return <p>{token.raw}</p>;
  }
}

function blocks(tokens: Token[] | undefined, cites: Cites | undefined): ReactNode {
  return tokens?.map((token, at) => <Fragment key={at}>{drawBlock(token, cites, false)}</Fragment>);
}

function drawList(list: Tokens.List, cites: Cites | undefined): ReactNode {
  const items = list.items.map((item, at) => (
    <li key={at} className={item.task ? "task" : undefined}>
      {item.task && <input type="checkbox" checked={item.checked ?? false} disabled readOnly aria-label={item.checked ? "done" : "to do"} />}
      {blocks(item.tokens.filter((token) => token.type !== "checkbox"), cites)}
    </li>
  ));
  return list.ordered ? <ol start={list.start === "" ? undefined : Number(list.start)}>{items}</ol> : <ul>{items}</ul>;
}

function drawTable(table: Tokens.Table, cites: Cites | undefined): ReactNode {
  const cell = (one: Tokens.TableCell, at: number, isHead: boolean) =>
    createElement(isHead ? "th" : "td", { key: at, className: one.align ? `to-${one.align}` : undefined, ...(isHead ? { scope: "col" } : {}) }, inline(one.tokens, cites));
  return (
    <div className="table" role="region" aria-label="Table" tabIndex={0}>
      <table>
        <thead>
          <tr>{table.header.map((one, at) => cell(one, at, true))}</tr>
        </thead>
        <tbody>
          {table.rows.map((row, at) => (
            <tr key={at}>{row.map((one, place) => cell(one, place, false))}</tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

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
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "br":
      return <br />;
    case "maths":
      return <Maths text={(token as MathsToken).text} isBlock={false} />;
    case "citation":
      return drawCitation(token as CitationToken, cites);
    case "link":
      return drawLink((token as Tokens.Link).href, inline(token.tokens, cites));
    case "image": {
      // A picture from elsewhere would tell its server who reads this, so it is offered, not loaded.
      const image = token as Tokens.Image;
      return drawLink(image.href, `${decodeEntities(image.text) || words.thread.remoteImage} ↗`);
    }
    case "html":
      return /^<br\s*\/?>$/i.test(token.raw) ? <br /> : token.raw;
    default:
      return token.raw;
  }
}

/** Long texts as several nodes: one that grows changes only its last, and what is selected before it stays selected. */
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

type Painted = { language: string; text: string; nodes: ReactNode };

/** Beyond this, colours cost more than they tell. */
const MOST_CHARS = 60_000;
/** A block that still grows is painted again only after it has paused. */
const PAUSE_MS = 120;

/** A code block: its language, a button that copies it, and colours once the highlighter has been loaded. */
const Code = memo(function Code({ text, language, isOpen }: { text: string; language: string; isOpen: boolean }) {
  const painted = usePainted(text, language, isOpen);
  return (
    <figure className="code">
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={text} label={words.thread.copyCode} />
      </figcaption>
      <pre tabIndex={0} aria-label={language || "code"} role="region">
        <code>
          {painted.nodes}
          {painted.rest}
        </code>
      </pre>
    </figure>
  );
});

/** The code, in colours as far as it is painted; what has come since is plain until it is. */
function usePainted(text: string, language: string, isOpen: boolean): { nodes: ReactNode; rest: string } {
  const [painted, setPainted] = useState<Painted | null>(null);
  useEffect(() => {
    if (!language || text.length > MOST_CHARS) return undefined;
    let isCurrent = true;
    const timer = setTimeout(() => {
      void import("./highlight").then(({ paint }) => {
        const nodes = isCurrent ? paint(text, language) : null;
        if (nodes !== null) setPainted({ language, text, nodes });
      });
    }, isOpen ? PAUSE_MS : 0);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [text, language, isOpen]);
  if (!painted || painted.language !== language || !text.startsWith(painted.text)) return { nodes: null, rest: text };
  return { nodes: painted.nodes, rest: text.slice(painted.text.length) };
}

/** A formula: its source until the typesetter has been loaded, and also where it cannot be set. */
const Maths = memo(function Maths({ text, isBlock }: { text: string; isBlock: boolean }) {
  const element = useRef<HTMLSpanElement>(null);
  useEffect(() => {
    let isCurrent = true;
    void import("./typeset").then(({ typeset }) => {
      if (isCurrent && element.current) typeset(element.current, text, isBlock);
    });
    return () => {
      isCurrent = false;
    };
  }, [text, isBlock]);
  // React must not see the children that the typesetter makes, so the element is made anew for each formula.
  return (
    <span key={text} ref={element} className={isBlock ? "maths is-block" : "maths"}>
      {text}
    </span>
  );
});
