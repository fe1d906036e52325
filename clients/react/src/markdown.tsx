/** Draws Markdown as elements, one by one. There is no innerHTML: HTML in the text stays text. */
import { type Token, type Tokens, marked } from "marked";
import { createElement, Fragment, type ReactNode } from "react";

export function Markdown({ text }: { text: string }): ReactNode {
  return <div className="tk-prose">{blocks(marked.lexer(text))}</div>;
}

function blocks(tokens: readonly Token[]): ReactNode {
  return tokens.map((token, at) => <Fragment key={at}>{block(token)}</Fragment>);
}

function block(token: Token): ReactNode {
  switch (token.type) {
    case "space":
    case "def":
      return null;
    case "heading":
      return createElement(`h${Math.min((token as Tokens.Heading).depth + 2, 6)}`, null, inline(token.tokens));
    case "paragraph":
      return <p>{inline(token.tokens)}</p>;
    case "code":
      return (
        <pre tabIndex={0}>
          <code>{(token as Tokens.Code).text}</code>
        </pre>
      );
    case "blockquote":
      return <blockquote>{blocks(token.tokens ?? [])}</blockquote>;
    case "hr":
      return <hr />;
    case "list": {
      const { ordered, start, items } = token as Tokens.List;
      const rows = items.map((item, at) => <li key={at}>{blocks(item.tokens)}</li>);
      return ordered ? <ol start={Number(start) || 1}>{rows}</ol> : <ul>{rows}</ul>;
    }
    case "table": {
      const { header, rows } = token as Tokens.Table;
      return (
        <div className="tk-table" tabIndex={0}>
          <table>
            <thead>
              <tr>{header.map((cell, at) => <th key={at}>{inline(cell.tokens)}</th>)}</tr>
            </thead>
            <tbody>
              {rows.map((row, at) => (
                <tr key={at}>{row.map((cell, place) => <td key={place}>{inline(cell.tokens)}</td>)}</tr>
              ))}
            </tbody>
          </table>
        </div>
      );
    }
    case "text":
      return token.tokens ? inline(token.tokens) : decoded(token.raw);
    default:
      return token.raw;
  }
}

function inline(tokens: readonly Token[] | undefined): ReactNode {
  return (tokens ?? []).map((token, at) => <Fragment key={at}>{span(token)}</Fragment>);
}

function span(token: Token): ReactNode {
  switch (token.type) {
    case "strong":
      return <strong>{inline(token.tokens)}</strong>;
    case "em":
      return <em>{inline(token.tokens)}</em>;
    case "del":
      return <del>{inline(token.tokens)}</del>;
    case "codespan":
      return <code>{(token as Tokens.Codespan).text}</code>;
    case "br":
      return <br />;
    case "link": {
      const href = safeHref((token as Tokens.Link).href);
      if (href === null) return inline(token.tokens);
      return (
        <a href={href} target="_blank" rel="noopener noreferrer nofollow">
          {inline(token.tokens)}
        </a>
      );
    }
    // A picture would tell another server that the answer was read. Its text is shown.
    case "image":
      return (token as Tokens.Image).text;
    case "escape":
      return (token as Tokens.Escape).text;
    case "text":
      return token.tokens ? inline(token.tokens) : decoded(token.raw);
    default:
      return token.raw;
  }
}

/** Only http, https and mailto links can be opened. */
export function safeHref(href: string): string | null {
  try {
    const url = new URL(href);
    return ["http:", "https:", "mailto:"].includes(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

const ENTITIES: Readonly<Record<string, string>> = { amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00A0" };
const decoded = (text: string): string => text.replaceAll(/&(\w+);/g, (whole, name: string) => ENTITIES[name] ?? whole);
