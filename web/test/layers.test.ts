/** The layers of web/src: the state does no I/O, and components send no requests. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { expect, test } from "vitest";

const root = join(import.meta.dirname, "../src");

function sources(folder: string): [string, string][] {
  return readdirSync(join(root, folder), { recursive: true, encoding: "utf8" })
    .filter((name) => /\.tsx?$/.test(name))
    .map((name) => [`${folder}/${name}`, readFileSync(join(root, folder, name), "utf8")]);
}

const imports = (text: string) => [...text.matchAll(/^(?:import|export) (?!type\b)[^;]*?from "(\.[^"]+)"/gm)].map((found) => found[1] ?? "");
const IO = /\b(fetch|XMLHttpRequest|EventSource|WebSocket|localStorage|setTimeout|document|window)\b/;
const withoutComments = (text: string) => text.replaceAll(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "");

test.each(sources("state"))("%s does no I/O", (_, text) => {
  expect(withoutComments(text)).not.toMatch(IO);
  expect(imports(text).filter((path) => /(wire|effects|ui)\//.test(path))).toEqual([]);
});

test.each(sources("ui"))("%s sends no request by itself", (_, text) => {
  expect(withoutComments(text)).not.toMatch(/\b(fetch|XMLHttpRequest|EventSource|WebSocket)\b/);
  expect(imports(text).filter((path) => /wire\/(?!addresses)/.test(path))).toEqual([]);
});

test("the page knows the client by its name alone", () => {
  const importers = ["wire", "state", "effects", "ui"].flatMap(sources).filter(([, text]) => /from "[^"]*(clients\/js|schema)/.test(text));
  expect(importers).toEqual([]);
});
