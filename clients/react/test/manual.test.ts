/** The JSX of the manual: it has the right types, and it can be drawn. */
import { join } from "node:path";

import { type ComponentType, createElement } from "react";
import { renderToStaticMarkup } from "react-dom/server";
import ts from "typescript";
import { describe, expect, test } from "vitest";

import { PAGES, programOf } from "./manual.js";

const root = join(import.meta.dirname, "..");

/** What TypeScript says of a program that an application has in JavaScript. */
function complaints(program: string): string[] {
  const name = join(root, "test/program.jsx");
  const options: ts.CompilerOptions = {
    allowJs: true,
    checkJs: true,
    noEmit: true,
    jsx: ts.JsxEmit.ReactJSX,
    module: ts.ModuleKind.ESNext,
    moduleResolution: ts.ModuleResolutionKind.Bundler,
    target: ts.ScriptTarget.ES2022,
    lib: ["lib.es2023.d.ts", "lib.dom.d.ts", "lib.dom.iterable.d.ts", "lib.dom.asynciterable.d.ts"],
    types: ["vite/client", "node"],
    skipLibCheck: true,
    exactOptionalPropertyTypes: true,
    strictNullChecks: true,
    paths: {
      "@turnkeep/client": [join(root, "../js/src/index.ts")],
      "@turnkeep/react": [join(root, "src/index.ts")],
      "@turnkeep/react/styles.css": [join(root, "src/styles.css")],
    },
  };
  const host = ts.createCompilerHost(options);
  const { fileExists, readFile, getSourceFile } = host;
  host.fileExists = (file) => file === name || fileExists(file);
  host.readFile = (file) => (file === name ? program : readFile(file));
  host.getSourceFile = (file, ...rest) => (file === name ? ts.createSourceFile(file, program, ts.ScriptTarget.ES2022, true, ts.ScriptKind.JSX) : getSourceFile(file, ...rest));
  const made = ts.createProgram([name], options, host);
  return ts.getPreEmitDiagnostics(made, made.getSourceFile(name)).map(({ messageText }) => ts.flattenDiagnosticMessageText(messageText, "\n"));
}

describe.each(PAGES)("the JSX of %s", (page) => {
  test("has the right types", { timeout: 120_000 }, () => {
    expect(complaints(programOf(page))).toEqual([]);
  });

  test("is drawn", async () => {
    const module = (await import(/* @vite-ignore */ `manual:${page}`)) as Record<string, ComponentType>;
    const names = Object.keys(module);
    expect(names).not.toEqual([]);
    for (const name of names) expect(renderToStaticMarkup(createElement(module[name] as ComponentType)), name).toMatch(/^<section class="tk-chat"/);
  });
});

test("a property that does not exist is found", { timeout: 120_000 }, () => {
  const wrong = 'import { TurnkeepChat } from "@turnkeep/react";\nexport const Wrong = () => <TurnkeepChat colour="red" />;';
  expect(complaints(wrong).join()).toContain("colour");
});
