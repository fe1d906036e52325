// A Turnkeep for one file of tests: `python -m tests.wires.server`, in a folder of its own.
import { spawn } from "node:child_process";
import { mkdtemp, rm } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { createInterface } from "node:readline";

const ROOT = resolve(import.meta.dirname, "../../..");

export async function startServer(folder = undefined, port = 0) {
  folder ??= await mkdtemp(join(tmpdir(), "turnkeep-wires-"));
  const child = spawn(process.env.PYTHON ?? "python3", ["-m", "tests.wires.server", folder, String(port)], {
    cwd: ROOT,
    stdio: ["pipe", "pipe", "inherit"],
  });
  const ended = new Promise((done) => child.once("exit", done));
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]();
  const { value, done } = await lines.next();
  if (done) throw new Error("The server did not start.");
  const facts = JSON.parse(value);
  return {
    ...facts,
    folder,
    port: Number(new URL(facts.url).port),
    headers: { authorization: `Bearer ${facts.key}` },
    async kill() {
      child.kill("SIGKILL");
      await ended;
    },
    async stop() {
      child.stdin.end();
      await ended;
      await rm(folder, { recursive: true, force: true });
    },
    async call(method, path, body = undefined) {
      const response = await fetch(facts.url + path, {
        method,
        headers: { authorization: `Bearer ${facts.key}`, "content-type": "application/json" },
        body: body === undefined ? undefined : JSON.stringify(body),
      });
      const text = await response.text();
      if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${text}`);
      return text ? JSON.parse(text) : null;
    },
  };
}

/** A message that tells the model what to say: one list for each time that it is asked. */
export const script = (...rounds) => JSON.stringify({ rounds });

/** Wait for a condition. */
export async function until(condition, seconds = 60) {
  const end = Date.now() + seconds * 1000;
  while (true) {
    const found = await condition();
    if (found) return found;
    if (Date.now() > end) throw new Error(`Not within ${seconds} seconds: ${condition}`);
    await new Promise((done) => setTimeout(done, 20));
  }
}

/** What JSON keeps of a value. */
export const plain = (value) => JSON.parse(JSON.stringify(value));
