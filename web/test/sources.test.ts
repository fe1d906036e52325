/** Sources lead to the cited passage; invalid ids and addresses lead nowhere. */
import { describe, expect, test } from "vitest";

import type { Source } from "@turnkeep/client";
import { locate, locateWords } from "../src/state/passage";
import { pathOf, routeOf } from "../src/state/route";
import { numberOf, plainSnippet, sourceOf, targetOf } from "../src/state/sources";

const HEX = "0123456789abcdef0123456789abcdef";
const HERE = `conv_${HEX}`;
const source = (given: Partial<Source>): Source => ({ title: "T", snippet: "some words", ...given });
const pathTo = (given: Partial<Source>, conversation = HERE): string | null => {
  const target = targetOf(source(given), conversation);
  return target?.kind === "route" ? pathOf(target.route) : null;
};

describe("a source", () => {
  test("of a page, a row or a file opens beside the conversation", () => {
    expect(pathTo({ page_id: `page_${HEX}`, place: "Part & parcel" })).toBe(`/c/${HERE}/pages/page_${HEX}#quote=some+words&part=Part+%26+parcel`);
    expect(pathTo({ table_id: `table_${HEX}`, row: 17, place: "row 17" })).toBe(`/c/${HERE}/tables/table_${HEX}/17`);
    expect(pathTo({ file_id: `file_${HEX}`, place: "page 3" })).toBe(`/c/${HERE}/files/file_${HEX}#quote=some+words&part=page+3`);
  });

  test("of a conversation leads to its message, or to all of it where only its title matched", () => {
    const other = `conv_${HEX.replace("0", "f")}`;
    expect(pathTo({ conversation_id: other })).toBe(`/c/${other}#quote=some+words`);
    expect(pathTo({ conversation_id: other, title: "some words" })).toBe(`/c/${other}`);
  });

  test("in a conversation without an address opens in the settings", () => {
    expect(pathTo({ table_id: `table_${HEX}`, row: 2 }, "new")).toBe(`/settings/tables/table_${HEX}/2`);
    expect(targetOf(source({ file_id: `file_${HEX}` }), "new")).toBeNull();
  });

  test.each(["page_1", "../../v1/keys", `page_${HEX}/../x`, `PAGE_${HEX}`, `page_${HEX}?x`, "javascript:alert(1)"])("whose id is %s leads nowhere", (id) => {
    expect(targetOf(source({ page_id: id, table_id: id, file_id: id, conversation_id: id }), HERE)).toBeNull();
  });

  test("with an invalid row leads to its table", () => {
    for (const row of [0, -1, 1.5, Number.NaN]) expect(pathTo({ table_id: `table_${HEX}`, row })).toBe(`/c/${HERE}/tables/table_${HEX}`);
  });

  test("has its own number, or its position in the list", () => {
    const all = [source({ title: "A", number: 4 }), source({ title: "B" })];
    expect(all.map(numberOf)).toEqual([4, 2]);
    expect(sourceOf(all, 4)?.title).toBe("A");
    expect(sourceOf(all, 1)).toBeUndefined();
  });

  test("is shown without Markdown syntax, except for cells of a table", () => {
    const snippet = "… ## Refunds We give **money back** within [thirty days](https://x.org/law). - Keep `it`. | a | b | |---|---| | 1 | 2 |";
    expect(plainSnippet(source({ snippet }))).toBe("… Refunds We give money back within thirty days. - Keep it. · a · b · 1 · 2");
    const formula = "2 * 3 = 6, snake_case and a_b, 5 - 3, a || b, # 1";
    expect(plainSnippet(source({ snippet: formula }))).toBe(formula);
    expect(plainSnippet(source({ snippet: "Rate: **A**", table_id: "t" }))).toBe("Rate: **A**");
  });
});

describe("an address", () => {
  test("is the same after it was written and parsed", () => {
    const passage = { quote: "100 % of “it” & more #1", part: "Ünï/code" };
    for (const route of [
      { page: "chat", conversationId: HERE, item: { kind: "page", id: `page_${HEX}`, passage } },
      { page: "chat", conversationId: HERE, passage },
      { page: "chat", conversationId: HERE, item: { kind: "table", id: `table_${HEX}`, row: 3 } },
      { page: "chat", conversationId: HERE, item: { kind: "file", id: `file_${HEX}` } },
      { page: "settings", section: "pages", item: { kind: "page", id: `page_${HEX}`, passage } },
      { page: "settings", section: "tables", item: { kind: "table", id: `table_${HEX}` } },
      { page: "turn", turnId: `turn_${HEX}` },
      { page: "timeline", turnId: `turn_${HEX}` },
    ] as const) {
      const { pathname, hash } = new URL(pathOf(route), "http://here");
      expect(routeOf(pathname, hash)).toEqual(route);
    }
  });

  test("with an invalid id is that of its parent", () => {
    expect(routeOf(`/c/${HERE}/pages/nonsense`)).toEqual({ page: "chat", conversationId: HERE });
    expect(routeOf(`/c/${HERE}`, "#message")).toEqual({ page: "chat", conversationId: HERE });
    expect(routeOf("/settings/pages/nonsense")).toEqual({ page: "settings", section: "pages" });
    expect(routeOf(`/settings/keys/page_${HEX}`)).toEqual({ page: "settings", section: "keys" });
    expect(routeOf(`/settings/tables/table_${HEX}/0`)).toEqual({ page: "settings", section: "tables", item: { kind: "table", id: `table_${HEX}` } });
  });
});

describe("a passage", () => {
  const found = (text: string, quote: string): string | null => {
    const span = locate(text, quote);
    return span && text.slice(span.start, span.end);
  };

  test("is found regardless of case, spaces and cut ends", () => {
    const text = "First of all.\n\nThe tide   rises twice\na day, here.\nLast of all.";
    expect(found(text, "… the TIDE rises twice a day, he…")).toBe("The tide   rises twice\na day");
  });

  test("is found in the drawn text of its Markdown", () => {
    const drawn = "Refunds\nWe give \nmoney back\n within \nthirty days\n of the purchase.";
    expect(found(drawn, "## Refunds We give **money back** within [thirty days](https://example.org/law) of the purchase. - Keep")).toBe(drawn.slice(0, -1));
  });

  test("is the first place that contains most of it", () => {
    const text = "We open at nine. We close at five on Mondays. We open at ten on Sundays.";
    expect(found(text, "open at ten on Sundays")).toBe("open at ten on Sundays");
  });

  test("in a script without spaces is found by its characters", () => {
    expect(found("我们在三十天内退款。请保留收据。谢谢您的光临", "…请保留收据。谢谢您的光临")).toBe("请保留收据。谢谢您的光临");
  });

  test("that is missing is not found by a few common words", () => {
    expect(found("It is on the way to the sea.", "It is on a boat that the keeper of Brest sold")).toBeNull();
    expect(found("", "anything")).toBeNull();
    expect(found("anything", "… !")).toBeNull();
    expect(found("We sell salt.", "salt")).toBe("salt");
  });

  test("is found in a million characters in good time", () => {
    const text = `${"the of and to in is it on as at ".repeat(31_000)} the keeper of the light sleeps until nine`;
    const begun = performance.now();
    expect(found(text, "of the and the to of it the keeper of the light sleeps until nine the of and")).toContain("keeper of the light");
    expect(performance.now() - begun).toBeLessThan(5_000);
  });
});

test("the words that a search found are located inside of the passage only", () => {
  const text = "Tides elsewhere. The TIDES of Bern: tide tables, and tides.";
  const passage = locate(text, "The tides of Bern: tide tables");
  expect(passage).not.toBeNull();
  expect(passage && locateWords(text, passage, "tides").map(({ start, end }) => text.slice(start, end))).toEqual(["TIDES"]);
});

test("the address of a hit names the passage and the words that were found in it", () => {
  const route = { page: "chat", conversationId: HERE, passage: { quote: "some words", found: "words" } } as const;
  expect(pathOf(route)).toBe(`/c/${HERE}#quote=some+words&found=words`);
  expect(routeOf(`/c/${HERE}`, "#quote=some+words&found=words")).toEqual(route);
});
