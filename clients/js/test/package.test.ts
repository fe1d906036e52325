/** What is published: few files, few bytes, and what npm and bundlers want to know. `scripts/web client` has built it. */
import { readFileSync } from "node:fs";
import { join } from "node:path";
import { gzipSync } from "node:zlib";

import { expect, test } from "vitest";
import { build, type Rolldown } from "vite";

const root = join(import.meta.dirname, "..");

test("an application gets at most 15 kB, compressed, if it uses everything", async () => {
  const built = await build({
    root,
    configFile: false,
    logLevel: "error",
    build: { write: false, target: "es2022", lib: { entry: join(root, "dist/index.js"), formats: ["es"] }, minify: true },
  });
  const [bundle] = [built].flat() as Rolldown.RolldownOutput[];
  const bytes = gzipSync(bundle?.output[0].code ?? "").length;
  expect(bytes).toBeGreaterThan(5_000);
  expect(bytes).toBeLessThanOrEqual(15_000);
});

test("its description has what npm and bundlers need", () => {
  const description = JSON.parse(readFileSync(join(root, "package.json"), "utf8")) as Record<string, unknown>;
  expect(description).toMatchObject({ name: "@turnkeep/client", type: "module", license: "Apache-2.0", sideEffects: false, engines: { node: ">=20.3" } });
  expect(description).not.toHaveProperty("dependencies");
  expect(description).not.toHaveProperty("scripts");
  expect(description["peerDependenciesMeta"]).toEqual({ "@ag-ui/client": { optional: true } });
  const python = /^version = "(.*)"$/m.exec(readFileSync(join(root, "../python/pyproject.toml"), "utf8"));
  expect(description["version"]).toBe(python?.[1]?.replace(/(a|b|rc)(\d+)$/, "-$1.$2"));
});
