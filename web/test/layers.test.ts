/** The rooms keep to themselves: the parser and the state do no I/O, and the screen never fetches. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { expect, test } from "vitest";

const root = join(import.meta.dirname, "../src");

function sources(room: string): [string, string][] {
  return readdirSync(join(root, room), { recursive: true, encoding: "utf8" })
    .filter((name) => /\.tsx?$/.test(name))
    .map((name) => [`${room}/${name}`, readFileSync(join(root, room, name), "utf8")]);
}

const imports = (text: string) => [...text.matchAll(/^(?:import|export) (?!type\b)[^;]*?from "(\.[^"]+)"/gm)].map((found) => found[1] ?? "");
const IO = /\b(fetch|XMLHttpRequest|EventSource|WebSocket|localStorage|setTimeout|document|window)\b/;
const withoutComments = (text: string) => text.replaceAll(/\/\*[\s\S]*?\*\/|\/\/.*$/gm, "");

test.each([...sources("stream"), ...sources("state")])("%s does no I/O", (_, text) => {
  expect(withoutComments(text)).not.toMatch(IO);
  expect(imports(text).filter((path) => /(wire|effects|ui)\//.test(path))).toEqual([]);
});

test.each(sources("ui"))("%s fetches nothing by itself", (_, text) => {
  expect(withoutComments(text)).not.toMatch(/\b(fetch|XMLHttpRequest|EventSource|WebSocket)\b/);
  expect(imports(text).filter((path) => /wire\/(?!addresses)/.test(path))).toEqual([]);
});
