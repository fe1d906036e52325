/** The Markdown parser: growing texts, formulas, citations, safe links and entities. */
import type { Token, Tokens } from "marked";
import { describe, expect, test } from "vitest";

import { joined } from "@turnkeep/client";
import { decodeEntities, safeHref } from "../src/ui/markdown/links";
import { parse, type Parsed, parseGrowing } from "../src/ui/markdown/parser";

const TEXT = `# Title

A paragraph with **bold**, \`code\`, $a^2$ and a cite [1].

- one
- two
  - nested

  still two

1. first
2. second

| a | b |
|---|--:|
| 1 | 2 |

> quoted
> more

\`\`\`python
def f():
    return "# not a title"

x = 1
\`\`\`

$$
\\frac{1}{2}
$$

Setext
------

<div>raw</div>

Last *words*`;

const raws = (tokens: readonly { raw: string; type: string }[]) => tokens.map((token) => `${token.type}:${token.raw}`);

describe("a growing text", () => {
  test.each([1, 3, 17, 64])("parsed in pieces of %i characters ends like the whole text", (size) => {
    let parsed: Parsed | null = null;
    for (let at = size; at < TEXT.length + size; at += size) parsed = parseGrowing(parsed, TEXT.slice(0, at));
    expect(raws(parsed?.tokens ?? [])).toEqual(raws(parse(TEXT)));
  });

  test("that was replaced is parsed again", () => {
    const before = parseGrowing(null, "one");
    expect(raws(parseGrowing(before, "two").tokens)).toEqual(raws(parse("two")));
  });
});

describe("maths and citations", () => {
  const types = (text: string) => JSON.stringify(parse(text)).match(/"type":"(maths|citation)"/g)?.length ?? 0;
  test.each([
    ["$x$ and \\(y\\)", 2],
    ["$$x$$", 1],
    ["\\[x\\]", 1],
    ["It costs $5 and $6.", 0],
    ["`$x$`", 0],
    ["See [1] and [2].", 2],
    ["[1](https://example.org)", 0],
    ["[link]", 0],
  ])("%s", (text, count) => expect(types(text)).toBe(count));
});

test("only http, https and mailto links can be opened", () => {
  expect(safeHref("https://example.org/a?b=1")).toBe("https://example.org/a?b=1");
  expect(safeHref("mailto:ann@example.org")).toBe("mailto:ann@example.org");
  for (const bad of ["javascript:alert(1)", "JAVASCRIPT:alert(1)", "java\nscript:alert(1)", "java&#115;cript:alert(1)", " javascript:x", "data:text/html,x", "vbscript:x", "file:///x", "blob:https://x/1", "//evil.example", "/v1/files", "x"])
    expect(safeHref(bad)).toBeNull();
});

test("entities become their characters", () => {
  expect(decodeEntities("a &lt; b &amp;&amp; c &#62; d &#x1F600; &nope; &#0;")).toBe("a < b && c > d 😀 &nope; \ufffd");
});

test("neighbouring previews of one kind are joined", () => {
  const say = (kind: "text" | "reasoning", text: string) => ({ type: "delta" as const, iteration: 1, kind, text });
  expect(joined([say("reasoning", "a"), say("reasoning", "b"), say("text", "c"), say("text", "d")])).toEqual([say("reasoning", "ab"), say("text", "cd")]);
});

describe("a bare URL", () => {
  const links = (tokens: readonly Token[]): string[] => tokens.flatMap((token) => (token.type === "link" ? [(token as Tokens.Link).href] : "tokens" in token ? links(token.tokens ?? []) : []));

  test.each(['"%s"', "“%s”", "„%s“ and", "«%s»", "‹%s›", "‘%s’", "「%s」と", "『%s』", "《%s》", "%s。次", "“%s”.", "(“%s”)", "%s…"])("in %s ends before the quotation mark", (around) => {
    expect(links(parse(around.replace("%s", "https://example.org/a")))).toEqual(["https://example.org/a"]);
  });

  test("may hold brackets, an apostrophe and letters of any script", () => {
    for (const url of ["https://example.org/wiki/A_(b)", "https://example.org/don’t", "https://example.org/grüße/日本"]) expect(links(parse(`See ${url} there`))).toEqual([url]);
  });
});
