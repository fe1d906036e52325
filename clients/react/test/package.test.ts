/** What is published, and what the manual says of it. `scripts/web client` has built it. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { describe, expect, test } from "vitest";

import * as library from "../src/index.js";

const { Chat, defaultRenderers, defaultWords } = library;

const root = join(import.meta.dirname, "..");
const read = (name: string) => readFileSync(join(root, name), "utf8");
const description = JSON.parse(read("package.json")) as Record<string, Record<string, string>>;

test("its description has what npm and bundlers need", () => {
  const client = JSON.parse(read("../js/package.json")) as { version: string };
  expect(description).toMatchObject({ name: "@turnkeep/react", version: client.version, type: "module", license: "Apache-2.0", dependencies: { "@turnkeep/client": client.version } });
  expect(description["peerDependencies"]).toEqual({ react: ">=18", "react-dom": ">=18" });
  // The page is tested with the same version.
  const page = JSON.parse(read("../../web/package.json")) as { dependencies: Record<string, string> };
  expect(description["dependencies"]?.["marked"]).toBe(page.dependencies["marked"]);
});

test("it leads to files that exist", () => {
  const paths = Object.values(description["exports"] ?? {}).flatMap((entry) => (typeof entry === "string" ? [entry] : Object.values(entry as Record<string, string>)));
  expect(paths.filter((path) => !existsSync(join(root, path)))).toEqual([]);
});

describe("the manual", () => {
  const manual = read("../../docs/reference/react.md");
  const section = (heading: string) => manual.split(/^## /m).find((text) => text.startsWith(heading)) ?? "";
  const missing = (names: Iterable<string>, text: string) => [...names].filter((name) => !text.includes(`\`${name}\``));
  /** The fields of an interface. Types are gone at run time, so its source is read. */
  const fieldsOf = (file: string, name: string) => {
    const body = new RegExp(`^export interface ${name} \\{\n(.*?)^\\}`, "ms").exec(read(file))?.[1] ?? "";
    return [...body.matchAll(/^ {2}(?:readonly )?(\w+)\??[:(]/gm)].map(([, field = ""]) => field);
  };

  test("lists every property", () => {
    const properties = fieldsOf("src/TurnkeepChat.tsx", "TurnkeepChatProps");
    expect(properties).toContain("conversationId");
    expect(missing(properties, section("Properties"))).toEqual([]);
    expect(missing(fieldsOf("src/chat.ts", "ChatOptions"), section("The chat without React"))).toEqual([]);
    expect(missing(fieldsOf("src/chat.ts", "ChatState"), section("The chat without React"))).toEqual([]);
  });

  test("lists every word, with its text", () => {
    const rows = Object.entries(defaultWords).flatMap(([name, word]): [string, string][] => {
      if (typeof word === "string") return [[name, word]];
      if (typeof word !== "function") return Object.entries(word).map(([part, text]) => [`${name}.${part}`, text]);
      const parameters = /\((.*?)\)/.exec(String(word))?.[1]?.split(", ") ?? [];
      return [[`${name}(${parameters.join(", ")})`, (word as (...words: string[]) => string)(...parameters.map((each) => `*${each}*`))]];
    });
    const listed = [...section("Words").matchAll(/^\| `(.*?)` \| (.*) \|$/gm)].map(([, name = "", text = ""]) => [name, text]);
    expect(listed).toEqual(rows);
  });

  test("lists every renderer, with what it gets", () => {
    const rows = new Map([...section("Renderers").matchAll(/^\| `(\w+)` \|(.*)\|$/gm)].map(([, name = "", text = ""]) => [name, text]));
    expect([...rows.keys()]).toEqual(Object.keys(defaultRenderers));
    for (const [, name = "", properties = ""] of read("src/renderers.tsx").matchAll(/^ {2}(\w+): ComponentType<\{(.*)\}>;/gm))
      for (const [, property = ""] of properties.matchAll(/(?:^|; | )(\w+)(?:\(.*?\))?: /g))
        if (!["words", "decision", "callId"].includes(property)) expect(rows.get(name), `${name}.${property}`).toContain(`\`${property}`);
  });

  test("lists every variable with its values, and every class", () => {
    const styles = read("src/styles.css");
    const values = new Map<string, string[]>();
    for (const [, name = "", value = ""] of styles.matchAll(/var\((--tk-[a-z-]+), (.*)\);/g)) values.set(name, [...new Set([...(values.get(name) ?? []), value])]);
    for (const [name, all] of values) expect(section("Styles")).toContain(`| \`${name}\` | ${all.map((value) => `\`${value}\``).join(" | ")} |`);
    expect(values.size).toBe(10);
    const drawn = ["TurnkeepChat", "forms", "rows", "renderers", "markdown"].flatMap((file) => read(`src/${file}.tsx`).match(/(?<![-\w.])tk-[a-z-]+/g) ?? []);
    const styled = styles.match(/(?<=\.)tk-[a-z-]+/g) ?? [];
    expect(missing(new Set([...drawn, ...styled].map((name) => `.${name}`)), section("Styles"))).toEqual([]);
  });

  test("lists what the package and the chat offer", () => {
    for (const name of Object.keys(library)) expect(manual).toMatch(new RegExp(`\\b${name}\\b`));
    for (const [, name = ""] of read("src/index.ts").matchAll(/type (\w+)/g)) expect(manual, name).toMatch(new RegExp(`\\b${name}\\b`));
    const methods = [...Object.getOwnPropertyNames(Chat.prototype).filter((name) => name !== "constructor"), "get", "subscribe"];
    for (const name of methods) expect(section("The chat without React"), name).toMatch(new RegExp(`\`${name}\\(`));
  });

  test("lists the attributes, the properties and the events of the element", () => {
    const element = read("src/element.tsx");
    const about = section("An element for any page");
    const attributes = JSON.parse(/observedAttributes = (\[.*\]);/.exec(element)?.[1] ?? "[]") as string[];
    expect(attributes).toContain("base-url");
    expect(missing(attributes, about)).toEqual([]);
    expect(missing(new Set([...element.matchAll(/^ {2}set (\w+)\(/gm)].map(([, name = ""]) => `.${name}`)), about)).toEqual([]);
    expect(missing([...element.matchAll(/new CustomEvent\("(\w+)"/g)].map(([, name = ""]) => name), about)).toEqual([]);
  });
});
