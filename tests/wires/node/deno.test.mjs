// Our package in Deno, against a real server: a stream, its words, and a connection that breaks.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { script, startServer } from "./server.mjs";

let server;
let cache;

before(async () => {
  server = await startServer();
  cache = await mkdtemp(join(tmpdir(), "turnkeep-deno-"));
});
after(async () => {
  await server.stop();
  await rm(cache, { recursive: true, force: true });
});

/** The program, which is the one file of its package. Other platforms than this have a package of their own. */
const program = join(import.meta.dirname, "node_modules/@deno/linux-x64-glibc/deno");
const skip = process.platform === "linux" && process.arch === "x64" ? false : "package.json has Deno for Linux on x64 only";

test("the package asks, streams, resumes and stops in Deno", { skip, timeout: 300_000 }, async () => {
  const rounds = script(["One ", { pause: 0.3 }, "two. ", { call: "weather" }], ["Three ", { pause: 0.3 }, "four."]);
  // Only the server can be reached, and nothing can be written.
  const permissions = [`--allow-net=${new URL(server.url).host}`, "--allow-env=TURNKEEP_URL,TURNKEEP_KEY,TURNKEEP_AGENT,TURNKEEP_SCRIPT", "--allow-read=."];
  const options = ["run", "--no-prompt", "--no-remote", "--no-lock", "--node-modules-dir=manual", "--cached-only", "--check", ...permissions];
  const env = { ...process.env, DENO_DIR: cache, DENO_NO_UPDATE_CHECK: "1", NO_COLOR: "1", TURNKEEP_URL: server.url, TURNKEEP_KEY: server.key, TURNKEEP_AGENT: server.agent, TURNKEEP_SCRIPT: rounds };
  const child = spawn(program, [...options, "deno.ts"], { cwd: import.meta.dirname, env, stdio: ["ignore", "pipe", "pipe"] });
  let printed = "";
  let errors = "";
  child.stdout.on("data", (chunk) => (printed += chunk));
  child.stderr.on("data", (chunk) => (errors += chunk));
  const code = await new Promise((done) => child.once("close", done));
  assert.equal(code, 0, errors + printed);
  const { runtime, words, cuts, resumed, stopped, refused } = JSON.parse(printed);
  assert.match(runtime, /^Deno\//);
  assert.equal(words, "One two. Three four.");
  assert.equal(resumed, words);
  assert.ok(cuts >= 2, `the stream was cut ${cuts} times`);
  assert.deepEqual([stopped, refused], ["cancelled", "NotFound"]);
});
