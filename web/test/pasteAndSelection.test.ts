/** Growing texts, pasted files, and selections over many rows. */
import { expect, test } from "vitest";

import { pastedFiles } from "../src/ui/composer/attachments";
import { pieces } from "../src/ui/markdown/parser";
import { between } from "../src/ui/thread/useMountedRows";

test("a growing text keeps its pieces except the last", () => {
  const text = "Some words that are said one after the other, and some more. ".repeat(6);
  for (let end = 1; end <= text.length; end += 7) {
    const [now, later] = [pieces(text.slice(0, end)), pieces(text)];
    expect(now.join("")).toBe(text.slice(0, end));
    expect(later.slice(0, now.length - 1)).toEqual(now.slice(0, -1));
  }
});

test("a paste of formatted text with a picture of it is a paste of text", () => {
  const picture = new File(["x"], "cells.png");
  const clipboard = (texts: Record<string, string>) => ({ files: [picture] as unknown as FileList, getData: (type: string) => texts[type] ?? "" });
  expect(pastedFiles(clipboard({ "text/plain": "1\t2", "text/html": "<table>" }))).toEqual([]);
  expect(pastedFiles(clipboard({ "text/plain": "1\t2", "text/rtf": "{\\rtf1}" }))).toEqual([]);
  expect(pastedFiles(clipboard({}))).toEqual([picture]);
  // A picture copied in a browser, and a file copied in a file manager, which adds its name.
  expect(pastedFiles(clipboard({ "text/html": "<img>" }))).toEqual([picture]);
  expect(pastedFiles(clipboard({ "text/plain": "cells.png" }))).toEqual([picture]);
});

test("a selection keeps the rows between its ends, unless there are very many", () => {
  expect(between(4, 2)).toEqual([2, 3, 4]);
  expect(between(0, 1_000)).toEqual([0, 1_000]);
  expect(between(-1, 3)).toEqual([-1, 3]);
});
