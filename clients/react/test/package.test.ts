/** What is published, and what the manual says of it. `scripts/web client` has built it. */
import { existsSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { expect, test } from "vitest";

import { defaultRenderers } from "../src/index.js";

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

test("the manual lists every variable and every renderer", () => {
  const manual = read("../../docs/reference/javascript.md");
  const variables = new Set(read("src/styles.css").match(/--tk-[a-z-]+/g));
  expect([...variables].filter((name) => !manual.includes(`\`${name}\``))).toEqual([]);
  expect(Object.keys(defaultRenderers).filter((name) => !manual.includes(`\`${name}\``))).toEqual([]);
});
