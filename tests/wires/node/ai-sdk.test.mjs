// The chat of the AI SDK, in Node, against a real server.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { Chat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
  parseJsonEventStream,
  readUIMessageStream,
  uiMessageChunkSchema,
} from "ai";
import { generator, randomRounds, SEED, turnsOf } from "./random.mjs";
import { plain, script, startServer, until } from "./server.mjs";

const GOLDEN = join(import.meta.dirname, "../../golden");
const TURNS = turnsOf(40);
const LOCATE = { name: "locate", description: "Where the user is.", inputSchema: { type: "object" } };
let server;
let number = 0;

before(async () => {
  server = await startServer();
});
after(() => server.stop());

function transport({ agent = server.agent, ...options } = {}) {
  const query = agent ? `?agent=${agent}` : "";
  return new DefaultChatTransport({ api: `${server.url}/ai-sdk/chat${query}`, headers: server.headers, ...options });
}

/** A chat. Errors are kept in `errors`. */
function chatOf({ id = `chat-${process.pid}-${++number}`, transport: wire = {}, ...init } = {}) {
  const errors = [];
  const chat = new Chat({ id, transport: transport(wire), onError: (error) => errors.push(error), ...init });
  chat.errors = errors;
  return chat;
}

const textOf = (message) => message.parts.filter((part) => part.type === "text").map((part) => part.text).join("|");
const typesOf = (message) => message.parts.map((part) => part.type);
const reload = async (chat) => (await server.call("GET", `/ai-sdk/chat/${chat.id}/messages`)).messages;
const turnOf = (chat) => server.call("GET", `/v1/turns/${chat.lastMessage.metadata.turn_id}`);

/** The chat has what a page gets that loads it anew, and no message twice. */
async function assertSameAfterReload(chat) {
  const loaded = await reload(chat);
  const shown = plain(chat.messages);
  assert.deepEqual(shown.map(({ id, role }) => ({ id, role })), loaded.map(({ id, role }) => ({ id, role })));
  for (const [place, message] of shown.entries()) {
    assert.deepEqual(message.parts, loaded[place].parts);
    if (message.role === "assistant") assert.deepEqual(message.metadata, loaded[place].metadata);
  }
}

/** Lose the first request, before it leaves, and send the others. */
function losing() {
  let isFirst = true;
  return async (url, init) => {
    if (!isFirst) return fetch(url, init);
    isFirst = false;
    throw new TypeError("network error");
  };
}

/** Cut the body of the first response after some bytes, as a bad network does. One without a body (204) is whole. */
function cutting(bytes) {
  let isFirst = true;
  return async (url, init) => {
    const response = await fetch(url, init);
    if (!isFirst || !response.body) return response;
    isFirst = false;
    let left = bytes;
    const cut = new TransformStream({
      transform(chunk, controller) {
        if (chunk.length > left) controller.error(new TypeError("network error"));
        else controller.enqueue(chunk);
        left -= chunk.length;
      },
    });
    return new Response(response.body.pipeThrough(cut), { status: response.status, headers: response.headers });
  };
}

describe("a chat", () => {
  test("sends, streams and is the same after a reload", async () => {
    const chat = chatOf();
    await chat.sendMessage({ text: "Hello" });
    await chat.sendMessage({ text: "Again" });
    assert.equal(chat.status, "ready");
    assert.deepEqual(chat.messages.map(textOf), ["Hello", "You said: Hello", "Again", "You said: Again"]);
    assert.deepEqual(typesOf(chat.messages[1]), ["step-start", "text"]);
    assert.equal(chat.lastMessage.metadata.usage.output_tokens, 5);
    await assertSameAfterReload(chat);
    const { data } = await server.call("GET", `/v1/conversations?external_id=${chat.id}`);
    assert.deepEqual(data.map((each) => each.turn_count), [2]);
  });

  test("shows tools, reasoning and sources", async () => {
    const chat = chatOf();
    const calls = [{ call: "weather", args: { place: "Oslo" } }, { call: "weather", args: { place: "Nowhere" } }];
    await chat.sendMessage({ text: script([{ think: "Hm." }, "Look. ", ...calls], [{ call: "library" }], ["Snow."]) });
    const message = chat.lastMessage;
    assert.deepEqual(typesOf(message), [
      "step-start", "reasoning", "text", "dynamic-tool", "dynamic-tool",
      "step-start", "dynamic-tool", "source-url", "source-document",
      "step-start", "text",
    ]);
    const [oslo, nowhere] = message.parts.filter((part) => part.type === "dynamic-tool");
    assert.deepEqual([oslo.state, oslo.toolName, oslo.output], ["output-available", "weather", { place: "Oslo", sky: "snow" }]);
    assert.equal(nowhere.state, "output-error");
    assert.match(nowhere.errorText, /no such place/);
    await assertSameAfterReload(chat);
  });

  test("takes back words that the model says again", async () => {
    const chat = chatOf();
    await chat.sendMessage({ text: script([{ think: "Wrong." }, "Wro", { pause: 0.2 }, { restart: true }, "Right."]) });
    assert.equal(textOf(chat.lastMessage), "Right.");
    assert.deepEqual(typesOf(chat.lastMessage), ["step-start", "text"]);
    await assertSameAfterReload(chat);
  });

  test("regenerates an answer beside the old one", async () => {
    const chat = chatOf();
    await chat.sendMessage({ text: "One" });
    await chat.sendMessage({ text: "Two" });
    const [, , question, answer] = plain(chat.messages);
    await chat.regenerate();
    await chat.regenerate({ messageId: chat.lastMessage.id });
    assert.equal(chat.messages.length, 4);
    assert.equal(chat.messages[2].id, question.id);
    assert.notEqual(chat.lastMessage.id, answer.id);
    await assertSameAfterReload(chat);
    const { data } = await server.call("GET", `/v1/conversations/${chat.lastMessage.metadata.conversation_id}/messages`);
    assert.equal(data.at(-1).siblings.length, 3);
  });

  test("edits a question, and drops what followed it", async () => {
    const chat = chatOf();
    await chat.sendMessage({ text: "One" });
    const [question] = plain(chat.messages);
    await chat.sendMessage({ text: "Two" });
    await chat.sendMessage({ text: "Three", messageId: question.id });
    assert.deepEqual(chat.messages.map(textOf), ["Three", "You said: Three"]);
    await chat.sendMessage({ text: "Four" });
    assert.deepEqual(chat.messages.map(textOf), ["Three", "You said: Three", "Four", "You said: Four"]);
    await assertSameAfterReload(chat);
  });

  test("edits a question without changing it, and drops what followed it too", async () => {
    const chat = chatOf();
    await chat.sendMessage({ text: "One" });
    const [question] = plain(chat.messages);
    await chat.sendMessage({ text: "Two" });
    for (let count = 0; count < 2; count++) {
      await chat.sendMessage({ text: "One", messageId: question.id });
      assert.deepEqual(chat.messages.map(textOf), ["One", "You said: One"]);
      await assertSameAfterReload(chat);
    }
    // The second time it was the last question: a repeated request, which makes no turn.
    const { data } = await server.call("GET", `/v1/conversations/${chat.lastMessage.metadata.conversation_id}/messages`);
    assert.equal(data.at(-1).siblings.length, 2);
  });

  /** A chat whose requests fail while `network.isAway`. */
  function chatOnNetwork() {
    const network = { isAway: false };
    const chat = chatOf({ transport: { fetch: (...request) => (network.isAway ? Promise.reject(new TypeError("network error")) : fetch(...request)) } });
    return { chat, network };
  }

  test("asks a question whose request was lost when it is regenerated", async () => {
    const { chat, network } = chatOnNetwork();
    network.isAway = true;
    await chat.sendMessage({ text: "One" });
    assert.equal(chat.status, "error");
    network.isAway = false;
    await chat.regenerate();
    assert.deepEqual(chat.messages.map(textOf), ["One", "You said: One"]);
    await assertSameAfterReload(chat);
  });

  test("asks the edited question when the request of an edit is lost and the answer is regenerated", async () => {
    const { chat, network } = chatOnNetwork();
    await chat.sendMessage({ text: "One" });
    await chat.sendMessage({ text: "Two" });
    network.isAway = true;
    await chat.sendMessage({ text: "Three", messageId: chat.messages[0].id });
    assert.equal(chat.status, "error");
    network.isAway = false;
    await chat.regenerate();
    assert.deepEqual(chat.messages.map(textOf), ["Three", "You said: Three"]);
    await assertSameAfterReload(chat);
  });

  test("has its own files in the bag of the conversation", async () => {
    const chat = chatOf();
    const url = `data:text/plain;base64,${Buffer.from("buy milk").toString("base64")}`;
    await chat.sendMessage({ text: "Read.", files: [{ type: "file", mediaType: "text/plain", filename: "list.txt", url }] });
    assert.equal(chat.status, "ready", String(chat.error));
    const [question] = await reload(chat);
    assert.deepEqual(question.parts.map(({ type, filename }) => ({ type, filename }))[0], { type: "file", filename: "list.txt" });
    const content = await fetch(question.parts[0].url, { headers: server.headers });
    assert.equal(await content.text(), "buy milk");
    const { data } = await server.call("GET", `/v1/conversations/${chat.lastMessage.metadata.conversation_id}/files`);
    assert.equal(data.length, 1);
  });

  test("is steered by another client", async () => {
    const chat = chatOf();
    const sent = chat.sendMessage({ text: script(["Wait. ", { pause: 0.5 }, { call: "weather" }], ["Done."]) });
    const turnId = await until(() => chat.lastMessage?.metadata?.turn_id);
    await server.call("POST", `/v1/turns/${turnId}/steer`, { message: "In short." });
    await sent;
    const part = chat.lastMessage.parts.find(({ type }) => type === "steering-message");
    assert.deepEqual(plain(part.parts), [{ type: "text", text: "In short." }]);
    await assertSameAfterReload(chat);
  });
});

describe("a connection that breaks", () => {
  test("is resumed without doubling anything", async () => {
    const rounds = [["One ", { pause: 0.2 }, "two ", { call: "weather" }], [{ pause: 0.5 }, "three ", { pause: 0.3 }, "four"]];
    for (const bytes of [200, 420, 700, 900]) {
      const chat = chatOf({ transport: { fetch: cutting(bytes) } });
      await chat.sendMessage({ text: script(...rounds) });
      assert.equal(chat.status, "error", `not cut after ${bytes}`);
      await chat.resumeStream();
      assert.equal(chat.status, "ready", String(chat.error));
      assert.equal(textOf(chat.lastMessage), "One two |three four");
      assert.equal(chat.messages.length, 2);
      await assertSameAfterReload(chat);
    }
  });

  test("is resumed by a page that loads anew, and by a second page", async () => {
    const first = chatOf();
    const sent = first.sendMessage({ text: script(["One ", { pause: 0.7 }, "two"]) });
    await until(() => first.status === "streaming");
    const pages = await Promise.all([1, 2].map(async () => chatOf({ id: first.id, messages: await reload(first) })));
    await Promise.all([sent, ...pages.map((page) => page.resumeStream())]);
    for (const page of pages) assert.deepEqual(plain(page.messages).map(textOf), plain(first.messages).map(textOf));
    await assertSameAfterReload(pages[0]);
  });

  test("is resumed in a chat of another wire, under the id of its conversation", async () => {
    const body = { message: script(["One ", { pause: 0.7 }, "two"]), background: true };
    const { conversation_id, turn_id } = await server.call("POST", "/v1/turns", body);
    const chat = chatOf({ id: conversation_id, messages: await reload({ id: conversation_id }) });
    await chat.resumeStream();
    assert.equal(chat.lastMessage.id, turn_id);
    assert.equal(textOf(chat.lastMessage), "One two");
    await chat.sendMessage({ text: "Hello" });
    assert.equal(textOf(chat.lastMessage), "You said: Hello");
    await assertSameAfterReload(chat);
    assert.equal((await server.call("GET", `/v1/conversations/${conversation_id}`)).turn_count, 2);
  });

  test("finds nothing to resume when no turn runs", async () => {
    const chat = chatOf();
    await chat.resumeStream();
    assert.equal(chat.status, "ready");
    await chat.sendMessage({ text: "Hello" });
    const response = await fetch(`${server.url}/ai-sdk/chat/${chat.id}/stream`, { headers: server.headers });
    assert.equal(response.status, 204);
  });

  test("does not double a message that is sent twice", async () => {
    const chat = chatOf();
    await chat.sendMessage({ text: "Once" });
    const again = chatOf({ id: chat.id, messages: [chat.messages[0]] });
    await again.sendMessage();
    assert.deepEqual(plain(again.messages), plain(chat.messages));
    const repeated = chatOf({ id: chat.id });
    await repeated.sendMessage({ id: chat.messages[0].id, parts: [{ type: "text", text: "Once" }] });
    assert.deepEqual(plain(repeated.messages)[1], plain(chat.messages)[1]);
    await assertSameAfterReload(chat);
  });
});

describe("a server that dies", () => {
  test("is replaced, and the chat goes on where it was", async () => {
    let own = await startServer();
    const chat = new Chat({
      id: "killed",
      transport: new DefaultChatTransport({ api: `${own.url}/ai-sdk/chat?agent=Helper`, headers: own.headers }),
    });
    const rounds = [["One ", { call: "weather" }], ["two ", { pause: 3 }, "three"]];
    const sent = chat.sendMessage({ text: script(...rounds) });
    await until(() => chat.lastMessage?.role === "assistant" && textOf(chat.lastMessage).includes("two"));
    await own.kill();
    await sent;
    assert.equal(chat.status, "error");
    own = await startServer(own.folder, own.port);
    await chat.resumeStream();
    assert.equal(chat.status, "ready", String(chat.error));
    assert.equal(textOf(chat.lastMessage), "One |two three");
    assert.equal(chat.messages.length, 2);
    const { messages } = await own.call("GET", "/ai-sdk/chat/killed/messages");
    assert.deepEqual(plain(chat.messages)[1], messages[1]);
    await own.stop();
  });
});

describe("an approval", () => {
  const paying = script(["I pay. ", { call: "pay", args: { amount: 5 } }], ["Done."]);
  const asked = (chat) => chat.lastMessage.parts.find((part) => part.state === "approval-requested");

  for (const approved of [true, false]) {
    test(`goes on when it is ${approved ? "given" : "denied"}`, async () => {
      const chat = chatOf({ sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses });
      await chat.sendMessage({ text: paying });
      assert.equal(chat.status, "ready");
      assert.deepEqual(plain(asked(chat).input), { amount: 5 });
      await assertSameAfterReload(chat);
      await chat.addToolApprovalResponse({ id: asked(chat).approval.id, approved, reason: approved ? undefined : "too much" });
      await until(() => chat.status === "ready" && textOf(chat.lastMessage).includes("Done."));
      const part = chat.lastMessage.parts.find(({ type }) => type === "dynamic-tool");
      assert.deepEqual([part.state, part.output, part.approval.approved], approved ? ["output-available", "paid 5", true] : ["output-denied", undefined, false]);
      assert.equal(chat.messages.length, 2);
      await assertSameAfterReload(chat);
    });
  }

  test("is given on another wire, and the page that waits resumes", async () => {
    const chat = chatOf();
    await chat.sendMessage({ text: paying });
    const turn = await turnOf(chat);
    const decisions = turn.waiting_for.calls.map((call) => ({ call_id: call.id, decision: "allow" }));
    await server.call("POST", `/v1/turns/${turn.id}/approvals`, { decisions });
    const page = chatOf({ id: chat.id, messages: await reload(chat) });
    await page.resumeStream();
    await until(async () => (await turnOf(chat)).status === "succeeded");
    assert.equal((await reload(chat)).length, 2);
    assert.equal(textOf((await reload(chat))[1]), "I pay. |Done.");
  });

  test("is given on another wire, and the page that denies it is told", async () => {
    const chat = chatOf();
    const two = script([{ call: "pay", args: { amount: 5 } }, { call: "pay", args: { amount: 6 } }], ["Done."]);
    await chat.sendMessage({ text: two });
    const turn = await turnOf(chat);
    const [{ id: call_id }] = turn.waiting_for.calls;
    await server.call("POST", `/v1/turns/${turn.id}/approvals`, { decisions: [{ call_id, decision: "allow" }] });
    const page = chatOf({ id: chat.id });
    await page.resumeStream();
    const part = page.lastMessage.parts.find(({ toolCallId }) => toolCallId === call_id);
    assert.deepEqual([part.state, part.approval.approved], ["approval-responded", true]);
    assert.equal(page.lastMessage.parts.filter(({ state }) => state === "approval-requested").length, 1);
    assert.deepEqual(plain(page.lastMessage.parts), (await reload(chat))[1].parts);
    for (const { approval } of chat.lastMessage.parts.filter(({ state }) => state === "approval-requested"))
      await chat.addToolApprovalResponse({ id: approval.id, approved: false });
    await chat.sendMessage();
    assert.equal(chat.status, "error");
    assert.match(chat.error.message, /already_decided/);
    assert.equal((await turnOf(chat)).status, "waiting");
  });

  test("that is never given does not block the chat", async () => {
    const chat = chatOf();
    await chat.sendMessage({ text: paying });
    await chat.sendMessage({ text: "Never mind." });
    assert.equal(chat.status, "ready", String(chat.error));
    assert.equal(textOf(chat.lastMessage), "You said: Never mind.");
    await chat.sendMessage({ text: "And now?" });
    assert.equal(textOf(chat.lastMessage), "You said: And now?");
  });
});

describe("a client tool", () => {
  const tools = [LOCATE];
  const locating = script(["Where? ", { call: "locate" }, { call: "weather" }], ["There."]);

  test("is run by the page, and its result goes to the model", async () => {
    const chat = chatOf({
      transport: { agent: null, body: { tools } },
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall: ({ toolCall }) => {
        assert.equal(toolCall.dynamic, undefined);
        void chat.addToolOutput({ tool: toolCall.toolName, toolCallId: toolCall.toolCallId, output: { lat: 59.9 } });
      },
    });
    await chat.sendMessage({ text: script(["Where? ", { call: "locate" }], ["There."]) });
    await until(() => chat.status === "ready" && textOf(chat.lastMessage).includes("There."));
    const part = chat.lastMessage.parts.find(({ type }) => type === "tool-locate");
    assert.deepEqual([part.state, plain(part.output)], ["output-available", { lat: 59.9 }]);
    assert.equal(chat.messages.length, 2);
    await assertSameAfterReload(chat);
  });

  test("may fail, beside a tool of the server", async () => {
    const chat = chatOf({ transport: { body: { tools } } });
    await chat.sendMessage({ text: locating });
    const part = chat.lastMessage.parts.find(({ type }) => type === "tool-locate");
    assert.equal(part.state, "input-available");
    await chat.addToolOutput({ tool: "locate", toolCallId: part.toolCallId, state: "output-error", errorText: "no signal" });
    await chat.sendMessage();
    assert.equal(textOf(chat.lastMessage), "Where? |There.");
    await assertSameAfterReload(chat);
  });
});

describe("an end that is no answer", () => {
  test("an error keeps the words so far, and the chat goes on", async () => {
    const chat = chatOf();
    await chat.sendMessage({ text: script(["Half", { pause: 0.1 }, { fail: "The model broke." }]) });
    assert.equal(chat.status, "error");
    assert.match(chat.error.message, /The model broke/);
    assert.equal(textOf(chat.lastMessage), "Half");
    await assertSameAfterReload(chat);
    await chat.sendMessage({ text: "Hello" });
    assert.equal(textOf(chat.lastMessage), "You said: Hello");
    await assertSameAfterReload(chat);
  });

  test("an error and a stop before any word are the same after a reload", async () => {
    const chat = chatOf();
    await chat.sendMessage({ text: script([{ fail: "The model broke." }]) });
    assert.equal(chat.status, "error");
    assert.deepEqual(typesOf(chat.lastMessage), ["step-start"]);
    assert.match(chat.lastMessage.metadata.error.message, /The model broke/);
    await assertSameAfterReload(chat);
    const sent = chat.sendMessage({ text: script([{ pause: 60 }, "Late."]) });
    const turnId = await until(() => chat.messages.length === 4 && chat.lastMessage.metadata?.turn_id);
    await server.call("POST", `/v1/turns/${turnId}/cancel`);
    await sent;
    assert.equal(chat.status, "ready");
    assert.equal(chat.lastMessage.metadata.error.code, "cancelled");
    await assertSameAfterReload(chat);
  });

  test("an error after words that were taken back is the same after a reload", async () => {
    const chat = chatOf();
    await chat.sendMessage({ text: script([{ call: "weather" }], ["Wrong.", { pause: 0.2 }, { restart: true }, { fail: "The model broke." }]) });
    assert.equal(chat.status, "error");
    assert.deepEqual(typesOf(chat.lastMessage), ["step-start", "dynamic-tool", "step-start"]);
    await assertSameAfterReload(chat);
  });

  test("a stop really stops: the turn is named in the metadata", async () => {
    const chat = chatOf();
    const sent = chat.sendMessage({ text: script(["One ", { pause: 60 }, "two"]) });
    await until(() => chat.lastMessage?.role === "assistant" && textOf(chat.lastMessage) === "One ");
    await chat.stop();
    await sent;
    const { turn_id } = chat.lastMessage.metadata;
    assert.equal((await turnOf(chat)).status, "running");
    assert.equal((await server.call("POST", `/v1/turns/${turn_id}/cancel`)).status, "cancelled");
    assert.equal(textOf(chat.lastMessage), "One ");
    await chat.sendMessage({ text: "Hello" });
    assert.equal(textOf(chat.lastMessage), "You said: Hello");
  });

  test("a turn that is stopped elsewhere ends here", async () => {
    const chat = chatOf();
    const sent = chat.sendMessage({ text: script(["One ", { pause: 60 }, "two"]) });
    const turnId = await until(() => textOf(chat.lastMessage ?? { parts: [] }) === "One " && chat.lastMessage.metadata.turn_id);
    await server.call("POST", `/v1/turns/${turnId}/cancel`);
    await sent;
    assert.equal(chat.status, "ready");
    await assertSameAfterReload(chat);
  });

  test("a refusal says what to do", async () => {
    const chat = chatOf();
    const sent = chat.sendMessage({ text: script(["One ", { pause: 60 }]) });
    const turnId = await until(() => chat.lastMessage?.metadata?.turn_id);
    const second = chatOf({ id: chat.id });
    await second.sendMessage({ text: "Me too" });
    assert.equal(second.status, "error");
    assert.match(second.error.message, /conversation_busy/);
    await server.call("POST", `/v1/turns/${turnId}/cancel`);
    await sent;
    const wrong = chatOf({ transport: { agent: "No such agent" } });
    await wrong.sendMessage({ text: "Hello" });
    assert.match(wrong.error.message, /There is no agent called/);
  });
});

describe("anything", () => {
  test(`is the same after a reload, and nothing is doubled, in ${TURNS} random turns`, { timeout: 600_000 }, async () => {
    const random = generator(SEED);
    for (let left = TURNS; left > 0; ) {
      const page = randomPage(random);
      for (let turns = Math.min(left, 5); turns > 0; turns--, left--) await page.turn();
    }
  });
});

/** A page whose user does anything: asks, answers, stops, regenerates, edits, reloads, and loses the network. */
function randomPage(random) {
  let network = fetch;
  let isNothingToResume = false;
  let isStopped = false;
  let isLeft = false;
  const connect = async (url, init) => {
    const response = await network(url, init);
    isNothingToResume = response.status === 204;
    return response;
  };
  const open = (init = {}) => chatOf({ transport: { fetch: connect, body: { tools: [LOCATE] } }, ...init });
  let chat = open();
  const load = async () => void (chat.messages = await reload(chat));
  const reopen = async () => void (chat = open({ id: chat.id, messages: await reload(chat) }));
  const isOpen = (part) => part.state === "approval-requested" || (part.type === "tool-locate" && part.state === "input-available");
  const waits = () => (chat.lastMessage?.role === "assistant" ? chat.lastMessage.parts.filter(isOpen) : []);

  /** A request of the chat. It may be lost, and is then sent again. Or its connection breaks, and is resumed; whether it
   * broke. */
  async function act(request) {
    const way = random(10);
    network = way === 0 ? losing() : way <= 2 ? cutting(random(1_500)) : fetch;
    await request();
    network = fetch;
    if (chat.error?.message !== "network error") return false;
    if (way === 0) {
      await (chat.lastMessage.role === "user" ? chat.regenerate() : request());
      return false;
    }
    await chat.resumeStream();
    if (isNothingToResume) await load();
    return true;
  }

  /** Answer until the turn waits for nothing, or leave it waiting. */
  async function answer() {
    for (let parts = waits(); parts.length > 0; parts = waits()) {
      const way = random(8);
      if (way === 0) return;
      const turn = await turnOf(chat);
      if (way === 1 && turn.waiting_for.type === "approval") {
        const decisions = turn.waiting_for.calls.map(({ id }) => ({ call_id: id, decision: random(2) ? "allow" : "deny" }));
        await server.call("POST", `/v1/turns/${turn.id}/approvals`, { decisions });
        await act(() => chat.resumeStream());
        if (isNothingToResume) await load();
        continue;
      }
      for (const { approval, toolCallId } of parts) {
        if (approval) await chat.addToolApprovalResponse({ id: approval.id, approved: random(2) === 0 });
        else if (random(2)) await chat.addToolOutput({ tool: "locate", toolCallId, output: "Oslo" });
        else await chat.addToolOutput({ tool: "locate", toolCallId, state: "output-error", errorText: "no signal" });
      }
      const isCut = await act(() => chat.sendMessage());
      // The SDK keeps the message of approvals whose request has failed, and would send the next result of a tool for it.
      if ((isCut || chat.status === "error") && parts.some(({ approval }) => approval)) {
        if (!isStopped && !isLeft) await assertSameAfterReload(chat);
        await reopen();
      }
    }
  }

  /** Stop a turn that would not end by itself, as soon as its last words are there. */
  function watch() {
    const stopped = new Map();
    const timer = setInterval(() => {
      const { role, parts, metadata } = chat.lastMessage ?? {};
      if (role !== "assistant" || parts.at(-1)?.text !== "One " || stopped.has(metadata.turn_id)) return;
      isStopped = random(2) === 0;
      if (isStopped) void chat.stop();
      stopped.set(metadata.turn_id, server.call("POST", `/v1/turns/${metadata.turn_id}/cancel`));
    }, 20);
    return async () => {
      clearInterval(timer);
      await Promise.all(stopped.values());
    };
  }

  async function ask(request) {
    isLeft = waits().length > 0;
    const done = watch();
    try {
      await act(request);
      // Here the calls that were left are still open. If another wire had decided about one, the SDK would send the next
      // result of a tool for its message.
      if (isLeft) await load();
      await answer();
    } finally {
      await done();
    }
    // What was missed after a stop is only on the server, and so is the end of a call that was left without an answer.
    if (isStopped || isLeft) await load();
    isStopped = false;
    assert.ok(["ready", "error"].includes(chat.status), chat.status);
    assert.equal(new Set(chat.messages.map(({ id }) => id)).size, chat.messages.length);
    await assertSameAfterReload(chat);
  }

  return {
    async turn() {
      const { rounds } = randomRounds(random);
      const questions = chat.messages.filter(({ role }) => role === "user");
      const edited = random(6) === 0 ? questions[random(questions.length)] : undefined;
      await ask(() => chat.sendMessage({ text: script(...rounds), ...(edited ? { messageId: edited.id } : {}) }));
      if (random(6) === 0) await ask(() => chat.regenerate());
      if (random(4) === 0) await reopen();
    },
  };
}

describe("the golden turn", () => {
  async function read(file, message = undefined) {
    const stream = new Response(await readFile(join(GOLDEN, file))).body;
    const chunks = parseJsonEventStream({ stream, schema: uiMessageChunkSchema }).pipeThrough(
      new TransformStream({
        transform(chunk, controller) {
          if (!chunk.success) throw chunk.error;
          controller.enqueue(chunk.value);
        },
      }),
    );
    let last;
    for await (const each of readUIMessageStream({ stream: chunks, message })) last = each;
    return last;
  }

  test("is one and the same message in two requests and in a replay", async () => {
    const first = await read("everything.ai-sdk.1.sse");
    const whole = await read("everything.ai-sdk.2.sse", first);
    const replayed = await read("everything.ai-sdk.replay.sse");
    assert.deepEqual(plain(whole), plain(replayed));
    assert.equal(textOf(whole), "Let me look.|I will pay, and ask you.|Paid. Snow in Oslo [1].");
    assert.deepEqual(typesOf(whole), [
      "step-start", "reasoning", "text", "dynamic-tool", "dynamic-tool", "source-url", "source-document", "steering-message",
      "step-start", "text", "file", "dynamic-tool", "dynamic-tool", "tool-locate", "step-start", "text",
    ]);
  });
});
