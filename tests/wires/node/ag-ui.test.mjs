// `HttpAgent` of AG-UI, version 1.0.0 and the one that CopilotKit pins, against a real server. Its verifier is built in:
// it raises when the events of a run are out of order.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { registerHooks } from "node:module";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import * as current from "@ag-ui/client";
import * as old from "@ag-ui/client-0.0.59";
import { TurnkeepAgent } from "@turnkeep/client/ag-ui";
import { generator, randomRounds, SEED, turnsOf } from "./random.mjs";
import { plain, script, startServer, until } from "./server.mjs";

const GOLDEN = join(import.meta.dirname, "../../golden");
const TURNS = turnsOf(200);
const LOCATE = { name: "locate", description: "Where the user is.", parameters: { type: "object", properties: {} } };
const VERSIONS = { "1.0.0": current, "0.0.59": old };

// Our agent again, as an application has it that installed the older version.
registerHooks({
  resolve(name, context, next) {
    const isOld = name === "@ag-ui/client" && context.parentURL?.endsWith("?old");
    return next(isOld ? "@ag-ui/client-0.0.59" : name, context);
  },
});
const { TurnkeepAgent: OldAgent } = await import(`${import.meta.resolve("@turnkeep/client/ag-ui")}?old`);

let server;
let number = 0;

before(async () => {
  server = await startServer();
});
after(() => server.stop());

function agentOf(library, { threadId = `thread-${process.pid}-${++number}`, kind = library.HttpAgent, ...options } = {}) {
  const agent = new kind({ url: `${server.url}/ag-ui?agent=${server.agent}`, threadId, headers: server.headers, ...options });
  agent.warnings = [];
  return agent;
}

let messages = 0;

/** Run the agent with a new message of the user, or without. Returns the events that came. */
async function run(agent, text = undefined, parameters = {}) {
  if (text !== undefined) agent.addMessage({ id: `message-${process.pid}-${++messages}`, role: "user", content: text });
  // A client keeps the interrupts of a turn that failed, and wants each to be named.
  if (agent.pendingInterrupts.length > 0 && !parameters.resume) {
    const resume = agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "cancelled" }));
    parameters = { ...parameters, resume };
  }
  const events = [];
  let failure;
  try {
    await agent.runAgent(parameters, { onEvent: ({ event }) => void events.push(plain(event)) });
  } catch (error) {
    failure = error;
  }
  return { events, failure, types: events.map(({ type }) => type), last: events.at(-1) };
}

const named = (events, name) => events.filter((event) => event.type === "CUSTOM" && event.name === `turnkeep.${name}`);
const saidBy = (agent) =>
  agent.messages.filter(({ role }) => role === "assistant").map(({ content }) => content ?? "").join("|");

/** What the thread has on the server, as a client gets it that attaches anew. */
async function attached(threadId) {
  const agent = agentOf(current, { threadId, kind: TurnkeepAgent });
  await agent.connectAgent();
  return plain(agent.messages);
}

/** One line for each message, which is easy to compare. A client that heard words before their reasoning keeps them in
 * this order, and has the results of its own tools before others. So each kind is compared apart. An empty reasoning is
 * what a reset left. */
const shown = (list) => {
  const all = comparable(list).filter(({ role, content }) => role !== "reasoning" || content);
  const of = (...roles) => all.filter(({ role }) => roles.includes(role)).map((message) => JSON.stringify(message));
  return [...of("user", "assistant"), ...of("reasoning"), ...of("tool").sort()];
};

/** Ids of client tools' results are the client's own, and reasoning may be left in a client that lost its connection. */
const comparable = (list) =>
  plain(list)
    .filter(({ role }) => role !== "activity")
    .map(({ id, role, content, toolCalls, toolCallId }) => ({
      id: role === "tool" ? undefined : id, role, content: content || undefined, toolCalls, toolCallId,
    }));

async function assertSameOnServer(agent) {
  assert.deepEqual(shown(agent.messages), shown(await attached(agent.threadId)));
}

// The client reports what it does not like to the console.
const reported = [];
for (const name of ["warn", "error"]) {
  const before = console[name];
  console[name] = (...words) => {
    reported.push(words.map(String).join(" "));
    if (process.env.DEBUG) before(...words);
  };
}

for (const [version, library] of Object.entries(VERSIONS)) {
  const isOld = version !== "1.0.0";

  describe(`HttpAgent ${version}`, () => {
    test("runs, and has the same messages as the server", async () => {
      const agent = agentOf(library);
      const first = await run(agent, "Hello");
      assert.equal(first.failure, undefined);
      assert.deepEqual(first.types.filter((type) => type !== "CUSTOM"), [
        "RUN_STARTED", "TEXT_MESSAGE_START", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_CONTENT", "TEXT_MESSAGE_END", "RUN_FINISHED",
      ]);
      assert.equal(first.events[0].protocolVersion, isOld ? undefined : "1.0");
      assert.deepEqual(first.last.outcome, { type: "success" });
      assert.equal(first.last.usage?.[0].outputTokens, isOld ? undefined : 5);
      await run(agent, "Again");
      assert.equal(saidBy(agent), "You said: Hello|You said: Again");
      await assertSameOnServer(agent);
      const { data } = await server.call("GET", `/v1/conversations?external_id=${agent.threadId}`);
      assert.deepEqual(data.map((each) => each.turn_count), [2]);
    });

    test("shows tools, reasoning and sources", async () => {
      const agent = agentOf(library);
      const calls = [{ call: "weather", args: { place: "Oslo" } }, { call: "weather", args: { place: "Nowhere" } }];
      const { failure, events } = await run(agent, script([{ think: "Hm." }, "Look. ", ...calls], [{ call: "library" }], ["Snow."]));
      assert.equal(failure, undefined);
      assert.deepEqual(agent.messages.map(({ role }) => role), [
        "user", "reasoning", "assistant", "tool", "tool", "assistant", "tool", "assistant",
      ]);
      assert.equal(named(events, "sources")[0].value.sources.length, 2);
      await assertSameOnServer(agent);
    });

    test("takes back words that the model says again", async () => {
      const agent = agentOf(library);
      await run(agent, "Hello");
      const { failure, types } = await run(agent, script(["Look. ", { call: "weather" }], [{ think: "No." }, "Wro", { pause: 0.2 }, { restart: true }, "Right."]));
      assert.equal(failure, undefined);
      assert.ok(types.includes("MESSAGES_SNAPSHOT"));
      assert.equal(saidBy(agent), "You said: Hello|Look. |Right.");
    });

    for (const approved of [true, false]) {
      test(`asks for an approval, and goes on when it is ${approved ? "given" : "denied"}`, async () => {
        const agent = agentOf(library);
        const asked = await run(agent, script(["I pay. ", { call: "pay", args: { amount: 5 } }], ["Done."]));
        assert.equal(asked.failure, undefined);
        const [interrupt] = asked.last.outcome.interrupts;
        assert.equal(asked.last.outcome.type, "interrupt");
        assert.equal(interrupt.reason, "tool_approval");
        const resume = [{ interruptId: interrupt.id, status: "resolved", payload: { approved, reason: "Because." } }];
        const { failure, last } = await run(agent, undefined, { resume });
        assert.equal(failure, undefined);
        assert.equal(last.outcome.type, "success");
        assert.equal(saidBy(agent), "I pay. |Done.");
        const result = agent.messages.find(({ role }) => role === "tool");
        assert.match(result.content, approved ? /^paid 5$/ : /Denied by .*: Because\./);
        await assertSameOnServer(agent);
      });
    }

    test("takes words that come with an answer into the same turn", async () => {
      const agent = agentOf(library);
      const asked = await run(agent, script([{ call: "pay" }], ["Done."]));
      const resume = [{ interruptId: asked.last.outcome.interrupts[0].id, status: "cancelled" }];
      const { failure } = await run(agent, "Rather not.", { resume });
      assert.equal(failure, undefined);
      const { data } = await server.call("GET", `/v1/conversations?external_id=${agent.threadId}`);
      const transcript = await server.call("GET", `/v1/conversations/${data[0].id}/messages`);
      assert.equal(transcript.data.filter((each) => JSON.stringify(each.content).includes("Rather not.")).length, 1);
    });

    test("does not block the thread when an approval is never given", async () => {
      const agent = agentOf(library);
      await run(agent, script([{ call: "pay" }], ["Done."]));
      const other = agentOf(library, { threadId: agent.threadId, initialMessages: plain(agent.messages) });
      const { failure } = await run(other, "Never mind.");
      assert.equal(failure, undefined);
      assert.match(saidBy(other), /You said: Never mind\.$/);
    });

    test("runs a tool of the page", async () => {
      const agent = agentOf(library);
      const parameters = { tools: [LOCATE] };
      const asked = await run(agent, script(["Where? ", { call: "locate" }], ["There."]), parameters);
      assert.equal(asked.failure, undefined);
      const [call] = agent.messages.at(-1).toolCalls;
      assert.equal(call.function.name, "locate");
      assert.deepEqual(asked.last.outcome, isOld ? { type: "success" } : { type: "success", pendingToolCallIds: [call.id] });
      agent.addMessage({ id: "result-1", role: "tool", toolCallId: call.id, content: "Oslo" });
      const { failure } = await run(agent, undefined, parameters);
      assert.equal(failure, undefined);
      assert.equal(saidBy(agent), "Where? |There.");
      assert.equal(agent.messages.filter(({ role }) => role === "tool").length, 1);
      await assertSameOnServer(agent);
    });

    test("is steered by another client", async () => {
      const agent = agentOf(library);
      let turn;
      agent.subscribe({ onCustomEvent: ({ event }) => void (turn ??= event.value) });
      const running = run(agent, script(["Wait. ", { pause: 0.5 }, { call: "weather" }], ["Done."]));
      await until(() => turn);
      await server.call("POST", `/v1/turns/${turn.turn_id}/steer`, { message: "In short." });
      const { failure } = await running;
      assert.equal(failure, undefined);
      assert.deepEqual(agent.messages.filter(({ role }) => role === "user").map(({ content }) => content).slice(1), ["In short."]);
      await assertSameOnServer(agent);
    });

    test("goes on when an approval was given on another wire: the first answer holds", async () => {
      const agent = agentOf(library);
      const asked = await run(agent, script(["I pay. ", { call: "pay" }], [{ pause: 0.5 }, "Done."]));
      const { turn_id } = named(asked.events, "turn")[0].value;
      const { waiting_for } = await server.call("GET", `/v1/turns/${turn_id}`);
      const decisions = waiting_for.calls.map(({ id }) => ({ call_id: id, decision: "allow" }));
      await server.call("POST", `/v1/turns/${turn_id}/approvals`, { decisions });
      const late = await run(agent); // its answer is `cancelled`, and comes too late
      assert.match(String(late.failure), /409/);
      const resume = agent.pendingInterrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: { approved: true } }));
      const { failure, last } = await run(agent, undefined, { resume });
      assert.equal(failure, undefined);
      assert.equal(last.outcome.type, "success");
      assert.equal(saidBy(agent), "I pay. |Done.");
      assert.equal(agent.messages.find(({ role }) => role === "tool").content, "paid 1");
      await assertSameOnServer(agent);
    });

    test("hears of an error", async () => {
      const agent = agentOf(library);
      const { last } = await run(agent, script(["Half", { pause: 0.1 }, { fail: "The model broke." }]));
      assert.equal(last.type, "RUN_ERROR");
      assert.match(last.message, /The model broke/);
      await run(agent, "Hello");
      assert.match(saidBy(agent), /You said: Hello$/);
    });

    test("hears of a stop", async () => {
      const agent = agentOf(library);
      let turn;
      agent.subscribe({ onCustomEvent: ({ event }) => void (turn ??= event.value) });
      const running = run(agent, script(["One ", { pause: 60 }, "two"]));
      await until(() => turn && saidBy(agent) === "One ");
      await server.call("POST", `/v1/turns/${turn.turn_id}/cancel`);
      const { last } = await running;
      if (isOld) assert.deepEqual([last.type, last.code], ["RUN_ERROR", "cancelled"]);
      else assert.deepEqual([last.type, last.outcome], ["RUN_FINISHED", { type: "cancelled" }]);
    });

    test("runs the same messages again without doubling anything", async () => {
      const agent = agentOf(library);
      await run(agent, "Once");
      const again = agentOf(library, { threadId: agent.threadId, initialMessages: plain(agent.messages.slice(0, 1)) });
      const { failure } = await run(again);
      assert.equal(failure, undefined);
      assert.deepEqual(shown(again.messages), shown(agent.messages));
      const whole = agentOf(library, { threadId: agent.threadId, initialMessages: plain(agent.messages) });
      assert.equal((await run(whole)).failure, undefined);
      assert.deepEqual(comparable(whole.messages), comparable(agent.messages));
    });

    test("asks a question whose request was lost when it runs again", async () => {
      const agent = agentOf(library);
      const { url } = agent;
      agent.url = "http://127.0.0.1:9/"; // a port that `fetch` refuses
      assert.match(String((await run(agent, "Hello")).failure), /fetch failed/);
      agent.url = url;
      assert.equal((await run(agent)).failure, undefined);
      assert.equal(saidBy(agent), "You said: Hello");
      await assertSameOnServer(agent);
    });

    test("re-attaches after its connection was cut", async () => {
      const agent = agentOf(library);
      const running = run(agent, script(["One ", { pause: 0.8 }, "two ", { call: "weather" }], ["three"]));
      await until(() => saidBy(agent) === "One ");
      agent.abortRun();
      await running;
      const again = agentOf(library, { threadId: agent.threadId, initialMessages: plain(agent.messages) });
      const { failure } = await run(again);
      assert.equal(failure, undefined);
      assert.equal(saidBy(again), "One two |three");
      await assertSameOnServer(again);
    });

    test(`has nothing to complain about in ${TURNS} random turns`, { timeout: 600_000 }, async () => {
      const random = generator(SEED);
      reported.length = 0;
      for (let left = TURNS; left > 0; ) {
        const agent = agentOf(library);
        for (let turns = Math.min(left, 5); turns > 0; turns--, left--) await randomTurn(agent, random);
        await assertSameOnServer(agent);
      }
      assert.deepEqual(reported.filter((words) => !words.includes("The model broke")), []);
    });
  });
}

for (const [version, library, kind] of [["1.0.0", current, TurnkeepAgent], ["0.0.59", old, OldAgent]]) {
  describe(`TurnkeepAgent with ${version}`, () => {
    test("is an agent of that version", () => {
      assert.ok(kind.prototype instanceof library.HttpAgent);
    });

    test("attaches to a turn that runs, and follows it to its end", async () => {
      const agent = agentOf(library);
      await run(agent, "Hello");
      const running = run(agent, script(["One ", { pause: 0.8 }, "two"]));
      await until(() => saidBy(agent).endsWith("One "));
      const second = agentOf(library, { threadId: agent.threadId, kind });
      await second.connectAgent();
      await running;
      assert.deepEqual(comparable(second.messages), comparable(agent.messages));
      assert.equal(saidBy(second), "You said: Hello|One two");
    });

    test("attaches to a conversation of another wire, under its id", async () => {
      const { conversation_id } = await server.call("POST", "/v1/turns", { message: "Hello" });
      const agent = agentOf(library, { threadId: conversation_id, kind });
      await agent.connectAgent();
      assert.equal(saidBy(agent), "You said: Hello");
      assert.equal((await run(agent, "Again")).failure, undefined);
      const { turn_count } = await server.call("GET", `/v1/conversations/${conversation_id}`);
      assert.equal(turn_count, 2);
    });

    test("has the files of its messages", async () => {
      const agent = agentOf(library, { kind });
      const part = (type, mimeType, text) => ({
        type, source: { type: "data", value: Buffer.from(text).toString("base64"), mimeType }, metadata: { filename: `a.${mimeType.split("/")[1]}` },
      });
      const content = [{ type: "text", text: "Read." }, part("document", "text/plain", "buy milk"), part("document", "text/csv", "a,b")];
      assert.equal((await run(agent, content)).failure, undefined);
      await agent.connectAgent();
      const [words, list, table] = plain(agent.messages[0].content);
      assert.deepEqual(words, { type: "text", text: "Read." });
      assert.deepEqual([list, table].map(({ type, source, metadata }) => [type, source.type, source.mimeType, metadata.filename]), [
        ["document", "url", "text/plain", "a.plain"], ["document", "url", "text/csv", "a.csv"],
      ]);
      assert.equal(await (await fetch(list.source.value, { headers: server.headers })).text(), "buy milk");
      // The message with addresses is the same question as the one with the files.
      const again = agentOf(library, { threadId: agent.threadId, initialMessages: plain(agent.messages.slice(0, 1)) });
      assert.equal((await run(again)).failure, undefined);
      assert.deepEqual(shown(again.messages), shown(agent.messages));
      const { data } = await server.call("GET", `/v1/conversations?external_id=${agent.threadId}`);
      assert.deepEqual(data.map((each) => each.turn_count), [1]);
    });

    test("finds an approval that is wanted, and gives it", async () => {
      const agent = agentOf(library);
      await run(agent, script([{ call: "pay" }], ["Done."]));
      const second = agentOf(library, { threadId: agent.threadId, kind });
      await second.connectAgent();
      assert.equal(second.pendingInterrupts.length, 1);
      const resume = [{ interruptId: second.pendingInterrupts[0].id, status: "resolved", payload: { approved: true } }];
      assert.equal((await run(second, undefined, { resume })).failure, undefined);
      assert.equal(saidBy(second), "|Done.");
      await assertSameOnServer(second);
    });

    test("hears that the turn was stopped", async () => {
      const agent = agentOf(library);
      let turn;
      agent.subscribe({ onCustomEvent: ({ event }) => void (turn ??= event.value) });
      const running = run(agent, script(["One ", { pause: 60 }, "two"]));
      await until(() => turn && saidBy(agent) === "One ");
      const second = agentOf(library, { threadId: agent.threadId, kind });
      const ends = [];
      second.subscribe({ onEvent: ({ event }) => void (event.type.startsWith("RUN_") && ends.push(event)) });
      const following = second.connectAgent().catch((error) => error);
      await until(() => saidBy(second) === "One ");
      await server.call("POST", `/v1/turns/${turn.turn_id}/cancel`);
      await Promise.all([running, following]);
      const last = plain(ends.at(-1));
      if (version === "1.0.0") assert.deepEqual(last.outcome, { type: "cancelled" });
      else assert.deepEqual([last.type, last.code], ["RUN_ERROR", "cancelled"]);
    });

    test("finds nothing in a new thread", async () => {
      const agent = agentOf(library, { kind });
      await agent.connectAgent();
      assert.deepEqual(agent.messages, []);
    });
  });
}

describe("the golden turn", () => {
  for (const [version, library] of Object.entries(VERSIONS)) {
    const wire = version === "1.0.0" ? "ag-ui" : "ag-ui-0.0.59";

    /** An agent whose runs are these files. */
    const replaying = (files, messages) => {
      const waiting = [...files];
      const fetching = async () =>
        new Response(await readFile(join(GOLDEN, waiting.shift())), { headers: { "content-type": "text/event-stream" } });
      const config = { url: "http://localhost/", threadId: "thread-1", initialMessages: messages };
      const agent = new library.HttpAgent({ ...config, fetch: fetching });
      agent.requestInit = () => ({});
      if (version !== "1.0.0") globalThis.fetch = fetching;
      return agent;
    };

    test(`leaves the same messages in two runs and in a replay, for ${version}`, async () => {
      const real = globalThis.fetch;
      try {
        const question = [{ id: "question-1", role: "user", content: "Pay, and say how the weather is." }];
        const live = replaying([`everything.${wire}.1.sse`, `everything.${wire}.2.sse`], question);
        const asked = await run(live);
        assert.equal(asked.failure, undefined);
        const resume = asked.last.outcome.interrupts.map(({ id }) => ({ interruptId: id, status: "resolved", payload: true }));
        assert.equal((await run(live, undefined, { resume })).failure, undefined);
        const replay = replaying([`everything.${wire}.replay.sse`], question);
        assert.equal((await run(replay)).failure, undefined);
        assert.deepEqual(plain(live.messages), plain(replay.messages));
        assert.equal(saidBy(live), "Let me look.|I will pay, and ask you.|Paid. Snow in Oslo [1].");
      } finally {
        globalThis.fetch = real;
      }
    });
  }
});

/** One turn of anything: words, reasoning, tools, resets, failures, stops, approvals and tools of the page. */
async function randomTurn(agent, random) {
  const { rounds, ending } = randomRounds(random);
  const parameters = { tools: [LOCATE] };
  let turn;
  const { unsubscribe } = agent.subscribe({
    onCustomEvent: ({ event }) => void (event.name === "turnkeep.turn" && (turn = event.value)),
    onTextMessageContentEvent: ({ event, textMessageBuffer }) => {
      if (ending === "pause" && (textMessageBuffer + event.delta).endsWith("One ")) {
        void server.call("POST", `/v1/turns/${turn.turn_id}/cancel`);
      }
    },
  });
  let done = await run(agent, script(...rounds), parameters);
  for (let count = 0; count < 10; count++) {
    assertWellFormed(done);
    if (done.last.type !== "RUN_FINISHED") break;
    const interrupts = done.last.outcome?.interrupts ?? [];
    const answered = new Set(agent.messages.filter(({ role }) => role === "tool").map(({ toolCallId }) => toolCallId));
    const pending = agent.messages
      .flatMap(({ toolCalls }) => toolCalls ?? [])
      .filter((call) => call.function.name === "locate" && !answered.has(call.id));
    if (interrupts.length === 0 && pending.length === 0) break;
    if (done.last.outcome?.type === "cancelled") break;
    for (const call of pending) agent.addMessage({ id: `result-${call.id}`, role: "tool", toolCallId: call.id, content: "Oslo" });
    const resume = interrupts.map(({ id }) =>
      random(2) ? { interruptId: id, status: "resolved", payload: { approved: random(2) === 0 } } : { interruptId: id, status: "cancelled" },
    );
    done = await run(agent, undefined, { ...parameters, ...(resume.length ? { resume } : {}) });
  }
  unsubscribe();
}

function assertWellFormed({ failure, last, types }) {
  if (last?.type !== "RUN_ERROR") assert.equal(failure, undefined);
  assert.equal(types[0], "RUN_STARTED");
  assert.ok(["RUN_FINISHED", "RUN_ERROR"].includes(types.at(-1)), types.join(" "));
}
