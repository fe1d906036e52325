// The programs of the manual, run as they stand.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, readFile, rm, symlink, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import * as library from "@turnkeep/client";
import { startServer } from "./server.mjs";

const DOCS = join(import.meta.dirname, "../../../docs");
let server;

before(async () => {
  server = await startServer();
});
after(() => server.stop());

/** Run all JavaScript of a page as one program, with this changed in it. Returns what it printed. */
async function run(page, changes = []) {
  let text = await readFile(join(DOCS, page), "utf-8");
  for (const [written, meant] of changes) {
    assert.ok(text.includes(written), written);
    text = text.replace(written, meant);
  }
  const blocks = [...text.matchAll(/^```js\n(.*?)^```/gms)].map(([, block]) => block);
  const isImport = (line) => line.startsWith("import ");
  const lines = blocks.flatMap((block) => block.split("\n"));
  // Each block of a page is a program of its own; two may import the same name.
  const imports = new Map();
  for (const line of lines.filter(isImport)) {
    const [, names, library] = line.match(/import \{ (.*) \} from "(.*)"/);
    imports.set(library, new Set([...(imports.get(library) ?? []), ...names.split(", ")]));
  }
  const heads = [...imports].map(([library, names]) => `import { ${[...names].join(", ")} } from "${library}";`);
  const folder = await mkdtemp(join(tmpdir(), "turnkeep-manual-"));
  try {
    await symlink(join(import.meta.dirname, "node_modules"), join(folder, "node_modules"));
    await writeFile(join(folder, "program.mjs"), [...heads, ...lines.filter((line) => !isImport(line))].join("\n"));
    const env = { ...process.env, TURNKEEP_URL: server.url, TURNKEEP_KEY: server.key };
    delete env.NODE_TEST_CONTEXT;
    const child = spawn(process.execPath, ["program.mjs"], { cwd: folder, env, stdio: ["ignore", "pipe", "inherit"] });
    let printed = "";
    child.stdout.on("data", (chunk) => (printed += chunk));
    const code = await new Promise((done) => child.once("close", done));
    assert.equal(code, 0, printed);
    return printed;
  } finally {
    await rm(folder, { recursive: true, force: true });
  }
}

test("use-the-ai-sdk.md", async () => {
  assert.match(await run("howto/use-the-ai-sdk.md"), /You said: Hello/);
});

test("use-ag-ui.md", async () => {
  const printed = await run("howto/use-ag-ui.md");
  assert.equal(printed.match(/You said: Hello/g).length, 2);
});

test("use-the-javascript-client.md", async () => {
  const printed = await run("howto/use-the-javascript-client.md");
  assert.match(printed, /^You said: Hello$/m);
  assert.match(printed, /You said: How are you\?/);
  assert.match(printed, /^succeeded$/m);
  assert.match(printed, /^turn_\w+:assistant$/m);
});

test("javascript.md", async () => {
  const printed = await run("reference/javascript.md");
  assert.match(printed, /You said: Hello\?succeeded$/m);
});

test("the README of the package", async () => {
  // The example is for a page, whose own server gives it tokens.
  const changes = [
    ['"https://turnkeep.example.com"', "process.env.TURNKEEP_URL"],
    ['fetch("/turnkeep-token")', "Promise.resolve(new Response(process.env.TURNKEEP_KEY))"],
  ];
  assert.match(await run("../clients/js/README.md", changes), /text: 'You said: What is the capital of France\?'/);
});

test("react.md", async () => {
  assert.match(await run("reference/react.md"), /You said: Hello/);
});

test("javascript.md lists every method, every error and every function of the package", async () => {
  const text = await readFile(join(DOCS, "reference/javascript.md"), "utf-8");
  const turnkeep = new library.Turnkeep({ baseUrl: "http://localhost" });
  const methods = (value) => Object.getOwnPropertyNames(Object.getPrototypeOf(value)).filter((name) => name !== "constructor");
  const stream = turnkeep.turns.follow("turn_1");
  const names = [turnkeep, turnkeep.turns, turnkeep.conversations, turnkeep.files, stream].flatMap(methods);
  const missing = [...names, ...Object.keys(library)].filter((name) => !new RegExp(`\\b${name}\\b`).test(text));
  assert.deepEqual(missing, []);
});
