// Our own package, built and packed as npm would publish it, against a real server.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readdir, readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import * as library from "@turnkeep/client";
import { plain, script, startServer, until } from "./server.mjs";

const { Turnkeep } = library;
const LOCATE = { type: "client", name: "locate", description: "Where the user is.", input_schema: { type: "object" } };

let server;
let turnkeep;

before(async () => {
  server = await startServer();
  turnkeep = clientOf();
});
after(() => server.stop());

const clientOf = (options = {}) => new Turnkeep({ baseUrl: server.url, token: server.key, ...options });

/** A question to the agent whose tools the server has. */
const question = (message, options = {}) => ({ message, agent_id: server.agent, ...options });
const textOf = (parts) => parts.filter(({ type }) => type === "text").map(({ text }) => text).join("|");

async function collect(items) {
  const all = [];
  for await (const item of items) all.push(item);
  return all;
}

/** The answer as the transcript has it. It must be what the events of the stream have shown. */
async function assertStored(stream) {
  const messages = await collect(turnkeep.conversations.messages(stream.conversationId));
  const answer = messages.findLast(({ role }) => role === "assistant");
  assert.deepEqual(plain(stream.turn.content), plain(answer.content));
}

/** `fetch` that breaks the body of each response after so many bytes, for so many responses. */
function cutting(bytes, times) {
  return async (url, init) => {
    const response = await fetch(url, init);
    if (!String(url).endsWith("/events") || times-- <= 0) return response;
    let left = bytes;
    const cut = new TransformStream({
      transform(chunk, controller) {
        controller.enqueue(chunk.subarray(0, left));
        left -= chunk.length;
        if (left <= 0) controller.error(new TypeError("terminated"));
      },
    });
    return new Response(response.body.pipeThrough(cut), response);
  };
}

describe("the package", () => {
  const folder = join(import.meta.dirname, "node_modules/@turnkeep/client");

  test("has the built files and what explains them, and nothing else", async () => {
    const names = (await readdir(folder)).filter((name) => name !== ".stamp");
    assert.deepEqual(names.sort(), ["LICENSE", "README.md", "dist", "package.json"]);
    const built = await readdir(join(folder, "dist"), { recursive: true, withFileTypes: true });
    const others = built.filter((entry) => entry.isFile() && !/\.(js|d\.ts)$/.test(entry.name));
    assert.deepEqual(others.map(({ name }) => name), []);
  });

  test("has types that an application can use", async () => {
    const tsc = join(import.meta.dirname, "../../../web/node_modules/typescript/bin/tsc");
    const options = ["--noEmit", "--strict", "--exactOptionalPropertyTypes", "--module", "nodenext", "--target", "es2022", "--lib", "es2023,dom,dom.asynciterable", "--skipLibCheck"];
    const run = spawnSync(process.execPath, [tsc, ...options, "application.ts"], { cwd: import.meta.dirname, encoding: "utf8" });
    assert.equal(run.status, 0, run.stdout + run.stderr);
  });

  test("leads to files that exist", async () => {
    const { exports } = JSON.parse(await readFile(join(folder, "package.json"), "utf8"));
    for (const entry of Object.values(exports).filter((value) => typeof value === "object"))
      for (const path of Object.values(entry)) assert.ok(await readFile(join(folder, path), "utf8"), path);
  });
});

describe("a question", () => {
  test("is asked and answered", async () => {
    const turn = await turnkeep.ask("Hello");
    assert.equal(textOf(turn.content), "You said: Hello");
    assert.deepEqual([turn.status, turn.finish], ["succeeded", "complete"]);
    assert.ok(turn.usage.output_tokens > 0);
  });

  test("has an answer that is read as it comes", async () => {
    const stream = turnkeep.stream(question(script([{ think: "Hm. " }, "Let me look. ", { call: "weather" }, { call: "library" }], ["Snow."])));
    const types = new Set();
    for await (const event of stream) types.add(event.type);
    for (const type of ["turn", "tool_calls", "step", "sources", "result"]) assert.ok(types.has(type), type);
    assert.equal(stream.turn.sources.length, 2);
    await assertStored(stream);
  });

  test("has words that come once, also where the model begins anew", async () => {
    const rounds = [["One ", { pause: 0.3 }, { restart: true }, "One ", "two. ", { call: "weather" }], ["Wro", { pause: 0.3 }, { restart: true }, "Right."]];
    const stream = turnkeep.stream(question(script(...rounds)));
    let shown = "";
    for await (const { text, dropped } of stream.words()) shown = shown.slice(0, shown.length - dropped) + text;
    assert.equal(shown, "One two. Right.");
    // A reader that comes late has the same words.
    let late = "";
    for await (const { text, dropped } of turnkeep.turns.follow(stream.turnId).words()) late = late.slice(0, late.length - dropped) + text;
    assert.equal(late, shown);
  });

  test("that is sent twice with one key is one turn", async () => {
    const options = { idempotencyKey: `key-${process.pid}` };
    const first = await turnkeep.turns.start("Once", options);
    assert.deepEqual(await turnkeep.turns.start("Once", options), first);
  });

  test("can be asked again and edited, each on a branch", async () => {
    const { turn_id: turnId, conversation_id: id } = await turnkeep.turns.start("One");
    await turnkeep.turns.follow(turnId).result();
    const again = await turnkeep.turns.regenerate(id, turnId);
    await turnkeep.turns.follow(again.turn_id).result();
    const edited = await turnkeep.turns.edit(id, turnId, { message: "Two" });
    assert.equal(textOf((await turnkeep.turns.follow(edited.turn_id).result()).content), "You said: Two");
    const messages = await collect(turnkeep.conversations.messages(id));
    assert.deepEqual(messages.map(({ content }) => textOf(content)), ["Two", "You said: Two"]);
    assert.equal(messages[0].siblings.length, 3);
  });
});

describe("a connection that breaks", () => {
  const rounds = [["One ", { pause: 0.2 }, "two ", { call: "weather" }], [{ pause: 0.4 }, "three ", { pause: 0.2 }, "four"]];

  test("is resumed without doubling or losing anything", async () => {
    // Previews that were missed are not sent again when an event has replaced them.
    const durable = (events) => events.filter(({ type }) => type !== "delta").map(({ type, text }) => [type, text]);
    const expected = durable(await collect(turnkeep.stream(question(script(...rounds)))));
    for (const bytes of [60, 300, 500, 900]) {
      const stream = clientOf({ fetch: cutting(bytes, 3) }).stream(question(script(...rounds)));
      assert.deepEqual(durable(await collect(stream)), expected, `cut after ${bytes}`);
      assert.equal(textOf(stream.turn.content), "One two |three four");
      await assertStored(stream);
    }
  });

  test("is resumed by another client at its cursor", async () => {
    const stream = turnkeep.stream(question(script(...rounds)));
    let said = "";
    for await (const { text } of stream.words()) {
      said += text;
      if (said === "One ") break;
    }
    // The other client does not know the words before its cursor, so it gets those of the previews alone.
    const rest = clientOf().turns.follow(stream.turnId, { after: stream.cursor });
    for await (const { text } of rest.words()) said += text;
    assert.equal(said, "One two three four");
    await stream.result();
    await assertStored(stream);
  });

  test("costs nothing when the server is killed and starts again", async () => {
    const other = await startServer();
    const client = new Turnkeep({ baseUrl: other.url, token: other.key });
    const message = script(["Kept. ", { call: "weather" }], ["Half ", { pause: 3 }, "and the rest."]);
    const stream = client.stream({ message, agent_id: other.agent });
    const events = [];
    let again;
    for await (const event of stream) {
      events.push(event);
      if (again || event.type !== "delta" || event.text !== "Half ") continue;
      await other.kill();
      again = startServer(other.folder, other.port);
    }
    again = await again;
    try {
      assert.equal(stream.turn.status, "succeeded");
      assert.ok(events.some(({ type }) => type === "reset"));
      assert.equal(textOf(stream.turn.content), "Kept. |Half and the rest.");
      assert.equal(stream.turn.content.filter(({ type }) => type === "step").length, 1);
      const [, answer] = await collect(client.conversations.messages(stream.conversationId));
      assert.deepEqual(plain(stream.turn.content), plain(answer.content));
    } finally {
      await again.stop();
    }
  });

  test("is an error when the server stays away", async () => {
    const client = new Turnkeep({ baseUrl: "http://127.0.0.1:9", patienceMs: 200 });
    await assert.rejects(client.ask("Hello"), library.ConnectionLost);
  });
});

describe("a turn that waits", () => {
  /** Read until the turn waits. */
  async function waiting(stream) {
    for await (const _ of stream) if (stream.turn.wait) return stream.turn.wait;
    throw new Error("The turn did not wait.");
  }

  test("goes on when a call is allowed, with other arguments", async () => {
    const stream = turnkeep.stream(question(script([{ call: "pay", args: { amount: 500 } }], ["Done."])));
    const { approvals } = await waiting(stream);
    assert.equal(approvals[0].name, "pay");
    await turnkeep.turns.approve(stream.turnId, approvals[0].id, { args: { amount: 5 } });
    const turn = await stream.result();
    assert.equal(turn.content.find(({ type }) => type === "step").result, "paid 5");
    await assertStored(stream);
    const late = turnkeep.turns.deny(stream.turnId, approvals[0].id);
    await assert.rejects(late, (error) => error instanceof library.AlreadyDecided && error.decision === "allow");
  });

  test("tells the model that a call was denied", async () => {
    const stream = turnkeep.stream(question(script([{ call: "pay" }], ["As you wish."])));
    const { approvals } = await waiting(stream);
    await turnkeep.turns.deny(stream.turnId, approvals[0].id, { reason: "Too much." });
    const step = (await stream.result()).content.find(({ type }) => type === "step");
    assert.equal(step.status, "failed");
    assert.match(step.error, /Too much\./);
  });

  test("gets the results of client tools", async () => {
    const stream = turnkeep.stream(question(script([{ call: "locate" }], ["There."]), { tools: [LOCATE] }));
    const { clientCalls } = await waiting(stream);
    assert.equal(clientCalls[0].name, "locate");
    await turnkeep.turns.results(stream.turnId, [{ call_id: clientCalls[0].id, result: { place: "Oslo" } }]);
    const turn = await stream.result();
    assert.deepEqual(plain(turn.content.find(({ type }) => type === "step").result), { place: "Oslo" });
    await assertStored(stream);
  });
});

describe("a turn that runs", () => {
  test("is steered", async () => {
    const stream = turnkeep.stream(question(script(["Wait. ", { pause: 0.5 }, { call: "weather" }], ["Done."])));
    let steering;
    for await (const event of stream) if (event.type === "delta") steering ??= await turnkeep.turns.steer(stream.turnId, "In short.");
    assert.deepEqual(stream.turn.steered.map(({ text, message_id }) => [text, message_id]), [["In short.", steering.message_id]]);
  });

  test("is cancelled, and what it said is kept", async () => {
    const stream = turnkeep.stream(question(script(["One ", { pause: 60 }, "two"])));
    for await (const event of stream) if (event.type === "delta") await stream.cancel();
    assert.equal(stream.turn.status, "cancelled");
    await assert.rejects(stream.result(), library.TurnStopped);
    await assertStored(stream);
    assert.equal((await turnkeep.turns.get(stream.turnId)).status, "cancelled");
  });

  test("keeps its conversation busy", async () => {
    const { turn_id: turnId, conversation_id: id } = await turnkeep.turns.start(question(script([{ pause: 60 }])));
    const busy = turnkeep.turns.start({ message: "Me too", conversation_id: id });
    await assert.rejects(busy, (error) => error instanceof library.ConversationBusy && error.turnId === turnId);
    await turnkeep.turns.cancel(turnId);
  });

  test("that fails says why", async () => {
    const failing = turnkeep.ask(question(script(["Half", { fail: "The model broke." }])));
    await assert.rejects(failing, (error) => error instanceof library.TurnFailed && /The model broke/.test(error.detail));
  });
});

describe("files", () => {
  test("are uploaded, attached and read", async () => {
    const progress = [];
    const options = { onProgress: (share) => progress.push(share) };
    const file = await turnkeep.files.upload(new File(["buy milk"], "list.txt", { type: "text/plain" }), options);
    assert.deepEqual([file.name, file.size, progress.at(-1)], ["list.txt", 8, 1]);
    const stream = turnkeep.stream({ message: "Read it.", attachment_ids: [file.id] });
    await stream.result();
    const [asked] = await collect(turnkeep.conversations.messages(stream.conversationId));
    assert.equal(asked.attachments[0].name, "list.txt");
    const { id } = (await turnkeep.request("GET", "/v1/conversations/{conversation_id}/files", { params: { conversation_id: stream.conversationId } })).data[0];
    assert.equal(await (await turnkeep.files.read(id)).text(), "buy milk");
    assert.equal((await turnkeep.files.text(id)).text.trim(), "buy milk");
    await turnkeep.files.delete(id);
    await assert.rejects(turnkeep.files.get(id), library.NotFound);
  });

  test("that are refused have a reason", async () => {
    const nameless = turnkeep.files.upload(new Blob(["words"]), { name: "" });
    await assert.rejects(nameless, (error) => error instanceof library.InvalidRequest && error.requestId !== null);
  });
});

describe("conversations", () => {
  test("are listed, changed, deleted and restored", async () => {
    const user = `ada-${process.pid}`;
    const client = clientOf({ user });
    for (const title of ["One", "Two", "Three"]) await client.conversations.create({ title });
    const titles = async () => (await collect(client.conversations.list({ limit: 2 }))).map(({ title }) => title).sort();
    assert.deepEqual(await titles(), ["One", "Three", "Two"]);
    const { id } = await client.conversations.create({ external_id: "ticket-12" });
    assert.equal((await client.conversations.create({ external_id: "ticket-12" })).id, id);
    assert.equal((await client.conversations.update(id, { title: "Four" })).title, "Four");
    await client.conversations.delete(id);
    await assert.rejects(client.conversations.get(id), library.NotFound);
    assert.equal((await client.conversations.restore(id)).title, "Four");
    assert.equal((await client.me()).user.external_id, user);
  });
});

describe("a token", () => {
  const tokenOf = (user, seconds = 60) => turnkeep.request("POST", "/v1/tokens", { body: { user, ttl_seconds: seconds } });

  test("of a user sees that user's conversations alone", async () => {
    const { token } = await tokenOf("grace");
    const client = clientOf({ token });
    await client.ask("Hello");
    assert.equal((await client.conversations.page()).data.length, 1);
    assert.equal((await client.me()).user.external_id, "grace");
  });

  test("is asked for again when the server does not take it any more, also by a stream", async () => {
    let asked = 0;
    const { token } = await tokenOf("alan");
    const client = clientOf({ token: async () => (++asked === 1 ? "too old" : token) });
    assert.equal(textOf((await client.ask("Hello")).content), "You said: Hello");
    assert.equal(asked, 2);
  });

  test("that is wrong is an error with the words of the server", async () => {
    const client = clientOf({ token: "wrong" });
    await assert.rejects(client.me(), (error) => {
      assert.ok(error instanceof library.Unauthorized);
      assert.deepEqual([error.name, error.status, error.code], ["Unauthorized", 401, "unauthorized"]);
      assert.match(error.requestId, /^[\w.-]{8,}$/);
      return error.detail.length > 10;
    });
  });
});

describe("errors", () => {
  test("have classes, codes and the id of the request", async () => {
    const missing = `conv_${"0".repeat(32)}`;
    await assert.rejects(turnkeep.conversations.get(missing), (error) => error instanceof library.NotFound && error.code === "not_found" && error.requestId !== null);
    await assert.rejects(turnkeep.turns.start({ message: "Hello", model: 5 }), library.InvalidRequest);
    await assert.rejects(turnkeep.turns.follow(`turn_${"0".repeat(32)}`).result(), library.NotFound);
  });
});

test("a thread is shown as the page shows it", async () => {
  const { newThread, reduceThread, settledRows } = library;
  const stream = turnkeep.stream(question(script(["Look. ", { call: "weather" }], ["Snow."])));
  await stream.result();
  const [conversation, page] = await Promise.all([
    turnkeep.conversations.get(stream.conversationId),
    turnkeep.conversations.messagePage(stream.conversationId, { order: "desc" }),
  ]);
  const thread = reduceThread(newThread(conversation.id), { type: "thread/loaded", id: conversation.id, conversation, page });
  const rows = settledRows(thread);
  assert.deepEqual(rows.map(({ kind }) => kind), ["message", "message"]);
  assert.deepEqual(plain(rows[1].message.content), plain(stream.turn.content));
  await until(() => thread.live === null);
});
