/** The layers of the client: the parser of streams and the state do no I/O, and know nothing of requests. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { expect, test } from "vitest";

const root = join(import.meta.dirname, "../src");

function sources(folder: string): [string, string][] {
  return readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => name.endsWith(".ts"))
    .map((name) => [join(folder, name), readFileSync(join(root, folder, name), "utf8")]);
}

const IO = /\b(fetch|XMLHttpRequest|EventSource|WebSocket|localStorage|setTimeout|document|window)\b/;
const withoutComments = (text: string) => text.replaceAll(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "");

test.each([...sources("stream"), ...sources("state")])("%s does no I/O", (_, text) => {
  expect(withoutComments(text)).not.toMatch(IO);
  const values = [...text.matchAll(/^(?:import|export) (?!type\b)[^;]*?from "(\.[^"]+)"/gm)].map((found) => found[1]);
  expect(values.filter((path) => !/^(\.|\.\.\/(stream|state))\/[a-zA-Z]+\.js$/.test(path ?? ""))).toEqual([]);
});

test("only wire/ imports the generated types", () => {
  const importers = sources(".").filter(([, text]) => /from "[./a-z]*schema\.js"/.test(text));
  expect(importers.map(([name]) => name)).toEqual(["wire/operations.ts", "wire/types.ts"]);
});

test("nothing is imported from another package, but for AG-UI by the entry of its own", () => {
  const packages = sources(".").flatMap(([name, text]) => [...text.matchAll(/from "([^."][^"]*)"/g)].map((found) => [name, found[1]]));
  expect(packages).toEqual([["agUi.ts", "@ag-ui/client"]]);
});
