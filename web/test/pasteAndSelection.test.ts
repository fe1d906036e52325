/** What happens under the reader's hands: a text that grows, a paste, a selection over many rows. */
import { expect, test } from "vitest";

import { pastedFiles } from "../src/ui/composer/attachments";
import { pieces } from "../src/ui/markdown/parse";
import { between } from "../src/ui/thread/useMountedRows";

test("a text that grows keeps its pieces but for the last", () => {
  const text = "Some words that are said one after the other, and some more. ".repeat(6);
  for (let end = 1; end <= text.length; end += 7) {
    const [now, later] = [pieces(text.slice(0, end)), pieces(text)];
    expect(now.join("")).toBe(text.slice(0, end));
    expect(later.slice(0, now.length - 1)).toEqual(now.slice(0, -1));
  }
});

test("a paste with formatted text and a picture of it is a paste of text", () => {
  const picture = new File(["x"], "cells.png");
  const carried = (said: Record<string, string>) => ({ files: [picture] as unknown as FileList, getData: (type: string) => said[type] ?? "" });
  expect(pastedFiles(carried({ "text/plain": "1\t2", "text/html": "<table>" }))).toEqual([]);
  expect(pastedFiles(carried({ "text/plain": "1\t2", "text/rtf": "{\\rtf1}" }))).toEqual([]);
  expect(pastedFiles(carried({}))).toEqual([picture]);
  // A picture that was copied in a browser, and a file that was copied in a file manager, which says its name.
  expect(pastedFiles(carried({ "text/html": "<img>" }))).toEqual([picture]);
  expect(pastedFiles(carried({ "text/plain": "cells.png" }))).toEqual([picture]);
});

test("a selection keeps the rows between its ends, unless these are very many", () => {
  expect(between(4, 2)).toEqual([2, 3, 4]);
  expect(between(0, 1_000)).toEqual([0, 1_000]);
  expect(between(-1, 3)).toEqual([-1, 3]);
});
