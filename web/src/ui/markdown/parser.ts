/**
 * Markdown → tokens. Nothing here produces HTML: tags in a text of a model stay text, and Markdown.tsx turns each token
 * into an element.
 */
import { Marked, type Token, Tokenizer, type Tokens, type TokensList } from "marked";

export interface MathsToken extends Tokens.Generic {
  type: "maths";
  text: string;
  isBlock: boolean;
}

export interface CitationToken extends Tokens.Generic {
  type: "citation";
  number: number;
}

const BLOCK_MATHS = /^ {0,3}(?:\$\$([\s\S]+?)\$\$|\\\[([\s\S]+?)\\\])[ \t]*(?:\n+|$)/;
const INLINE_MATHS = /^(?:\$\$([^$\n]+?)\$\$|\$(?![\s$])((?:\\.|[^$\\\n])*?(?:\\.|[^$\\\s]))\$(?!\d)|\\\(([^\n]+?)\\\))/;
const CITATION = /^\[(\d{1,3})\](?![([:])/;

/** Where a bare URL ends although no space follows: at a quotation mark, or at a full stop or comma of a script without spaces. */
const URL_END = /["“”„‟«»‹›「」『』《》。、，]|[‘’…]+$/;

const marked = new Marked({ gfm: true, breaks: false, async: false });
marked.use({
  tokenizer: {
    url(source): Tokens.Link | undefined {
      const link = Tokenizer.prototype.url.call(this, source);
      const end = link?.raw.search(URL_END) ?? -1;
      return end < 0 ? link : Tokenizer.prototype.url.call(this, source.slice(0, end));
    },
  },
  extensions: [
    {
      name: "mathsBlock",
      level: "block",
      start: (source) => source.match(/^ {0,3}(?:\$\$|\\\[)/m)?.index,
      tokenizer(source): MathsToken | undefined {
        const found = BLOCK_MATHS.exec(source);
        const text = found?.[1] ?? found?.[2];
        return found && text ? { type: "maths", raw: found[0], text: text.trim(), isBlock: true } : undefined;
      },
    },
    {
      name: "mathsInline",
      level: "inline",
      start: (source) => source.match(/\$|\\\(/)?.index,
      tokenizer(source): MathsToken | undefined {
        const found = INLINE_MATHS.exec(source);
        const text = found?.[1] ?? found?.[2] ?? found?.[3];
        return found && text ? { type: "maths", raw: found[0], text: text.trim(), isBlock: false } : undefined;
      },
    },
    {
      name: "citation",
      level: "inline",
      start: (source) => source.match(/\[\d/)?.index,
      tokenizer(source): CitationToken | undefined {
        const found = CITATION.exec(source);
        return found ? { type: "citation", raw: found[0], number: Number(found[1]) } : undefined;
      },
    },
  ],
});

export function parse(text: string): readonly Token[] {
  return marked.lexer(text);
}

export interface Parsed {
  readonly text: string;
  readonly tokens: readonly Token[];
}

/**
 * Parse a text that grows. The blocks before the last one cannot change any more, so only the rest is parsed again. Link
 * definitions are the exception: they take effect when the text is complete and parsed as a whole.
 */
export function parseGrowing(before: Parsed | null, text: string): Parsed {
  if (before === null || !text.startsWith(before.text)) return { text, tokens: parse(text) };
  if (before.text === text) return before;
  let kept = before.tokens.length - 1;
  while (kept >= 0 && before.tokens[kept]?.type === "space") kept -= 1;
  const stable = before.tokens.slice(0, Math.max(kept, 0));
  const begin = stable.reduce((sum, token) => sum + token.raw.length, 0);
  // If the tokens do not add up to the text, the offset is unknown: the lexer rewrites tabs and CR.
  if (!text.startsWith(stable.map((token) => token.raw).join(""))) return { text, tokens: parse(text) };
  const rest: TokensList = marked.lexer(text.slice(begin));
  return { text, tokens: [...stable, ...rest] };
}

const PIECE_CHARS = 48;

/** The text in pieces, cut after spaces. A longer text begins with the same pieces. */
export function pieces(text: string): string[] {
  const cut: string[] = [];
  let begin = 0;
  for (let space = text.indexOf(" ", PIECE_CHARS); space >= 0; space = text.indexOf(" ", begin + PIECE_CHARS)) {
    cut.push(text.slice(begin, space + 1));
    begin = space + 1;
  }
  return [...cut, text.slice(begin)];
}
