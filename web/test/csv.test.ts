/** CSV files and tables of answers. */
import { expect, test } from "vitest";

import { parseCsv } from "../src/state/csv";

test("quotes, line ends and separators are those of spreadsheets", () => {
  expect(parseCsv('a,b\r\n"x, ""y""\nz",2\r\n')).toEqual([["a", "b"], ['x, "y"\nz', "2"]]);
  expect(parseCsv("\ufeffa;b;c\n1,5;2;3")).toEqual([["a", "b", "c"], ["1,5", "2", "3"]]);
  expect(parseCsv("a\tb\n\n1\t2\n")).toEqual([["a", "b"], ["1", "2"]]);
});

test("what is not closed or empty does no harm", () => {
  expect(parseCsv("")).toEqual([]);
  expect(parseCsv('a,"b')).toEqual([["a", "b"]]);
  expect(parseCsv("a,b\n1")).toEqual([["a", "b"], ["1"]]);
});
