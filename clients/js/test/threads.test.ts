/** The reducers of turns and threads. */
import { describe, expect, test } from "vitest";

import { type Conversation, type Message, newThread, newTurn, openRows, type OutgoingMessage, reduceThread, reduceTurn, settledRows, shownParts, type StreamEvent, type Thread, waitingFor, wholeContent } from "../src/index.js";

const message = (turn: string, role: "user" | "assistant", more: Partial<Message> = {}): Message => ({
  id: `msg_${turn}_${role}`,
  conversation_id: "conv_1",
  turn_id: turn,
  role,
  content: [{ type: "text", text: `${role} of ${turn}` }],
  attachments: [],
  sources: [],
  usage: null,
  status: "succeeded",
  error: null,
  model: null,
  metadata: {},
  created_at: 1,
  ...more,
});

const conversation = (id: string, more: Partial<Conversation> = {}): Conversation => ({
  id,
  workspace_id: "ws_1",
  user: { id: "user_1", external_id: "ann" },
  user_id: "user_1",
  kind: "chat",
  agent_id: null,
  model: null,
  workflow_id: null,
  external_id: null,
  title: id,
  preview: null,
  message_count: 0,
  turn_count: 0,
  head_turn_id: null,
  running_turn: null,
  metadata: {},
  created_at: 1,
  updated_at: 1,
  ...more,
});

const outgoing = (key: string): OutgoingMessage => ({
  key,
  text: `text of ${key}`,
  attachments: [],
  agent_id: null,
  model: null,
  if_busy: "enqueue",
  status: "sending",
  turn_id: null,
  error: null,
  created_at: 1,
});

/** The newest first, as the server pages. */
const page = (messages: Message[], next: string | null = null) => ({ data: messages.toReversed(), next_cursor: next });

function loaded(...turns: string[]): Thread {
  const messages = turns.flatMap((turn) => [message(turn, "user"), message(turn, "assistant")]);
  return reduceThread(newThread("conv_1"), { type: "thread/loaded", id: "conv_1", conversation: conversation("conv_1"), page: page(messages, "older") });
}

const began: StreamEvent = { type: "turn", turn_id: "t2", conversation_id: "conv_1", user_message_id: "m", status: "running", attempt: 1 };
const says = (text: string): StreamEvent => ({ type: "delta", iteration: 1, kind: "text", text });

describe("a turn", () => {
  test("a reset drops the preview and keeps the recorded parts", () => {
    const events: StreamEvent[] = [began, { type: "tool_calls", iteration: 1, text: "Certain. ", calls: [] }, says("Perhaps"), { type: "reset", attempt: 2, reason: "x" }];
    expect(shownParts(events.reduce(reduceTurn, newTurn("t2")))).toEqual([{ type: "text", text: "Certain. " }]);
  });

  test("says what it waits for", () => {
    let turn = newTurn("t", "queued");
    expect(waitingFor(turn)).toBe("queue");
    turn = reduceTurn(turn, began);
    expect(waitingFor(turn)).toBe("first_word");
    turn = reduceTurn(turn, { type: "tool_calls", iteration: 1, text: "", calls: [{ id: "c", name: "x", args: {} }] });
    expect(waitingFor(turn)).toBe("tools");
    turn = reduceTurn(turn, { type: "step", id: "c", name: "x", status: "running", args: {} });
    expect(waitingFor(turn)).toBe("tools");
    turn = reduceTurn(turn, { type: "step", id: "c", name: "x", status: "succeeded", result: 1 });
    expect(waitingFor(turn)).toBe("first_word");
    turn = reduceTurn(turn, says("word"));
    expect(waitingFor(turn)).toBe("words");
  });

  test("waits for its tools while one of several still runs", () => {
    const step = (id: string, status: "running" | "succeeded"): StreamEvent => ({ type: "step", id, name: "x", status });
    const turn = [began, step("a", "running"), step("b", "running"), step("b", "succeeded")].reduce(reduceTurn, newTurn("t"));
    expect(waitingFor(turn)).toBe("tools");
    expect(waitingFor(reduceTurn(turn, step("a", "succeeded")))).toBe("first_word");
  });

  test("nothing happens to a settled turn", () => {
    const settled = reduceTurn(newTurn("t"), { type: "error", code: "cancelled", message: "Stopped." });
    expect(reduceTurn(settled, says("late"))).toBe(settled);
    expect(settled.status).toBe("cancelled");
  });

  test("an answer says how it ended, and an error what the transcript has of it", () => {
    const usage = { input_tokens: 1, output_tokens: 1, cache_read_tokens: 0, cache_write_tokens: 0 };
    const result: StreamEvent = { type: "result", message_id: "m", message: "Half", content: [{ type: "text", text: "Half" }], usage };
    expect(reduceTurn(newTurn("t"), result).finish).toBe("complete");
    expect(reduceTurn(newTurn("t"), { ...result, finish: "length" }).finish).toBe("length");
    const step: StreamEvent = { type: "step", id: "s", name: "n", status: "failed", error: "xxx" };
    const cut: StreamEvent = { type: "error", code: "x", message: "why", content: [{ type: "step", id: "s", name: "n", status: "failed", error: "x", is_cut: true }] };
    expect([step, cut].reduce(reduceTurn, newTurn("t")).content).toMatchObject([{ error: "x" }]);
  });

  test("all of a message that was cut is in its events", () => {
    const usage = { input_tokens: 1, output_tokens: 1, cache_read_tokens: 0, cache_write_tokens: 0 };
    const events: StreamEvent[] = [
      began,
      { type: "tool_calls", iteration: 0, text: "Look:", calls: [] },
      { type: "step", id: "s", name: "n", status: "succeeded", result: "whole" },
      {
        type: "result",
        message_id: "m",
        message: "Done.",
        content: [
          { type: "text", text: "[cut: 1 earlier parts; the events of the turn have them]", is_cut: true },
          { type: "step", id: "s", name: "n", status: "succeeded", result: "w", is_cut: true },
          { type: "reasoning", text: "Hm." },
          { type: "text", text: "Done." },
        ],
        usage,
      },
    ];
    expect(wholeContent("t2", events)).toEqual([
      { type: "text", text: "Look:" },
      { type: "step", id: "s", name: "n", status: "succeeded", result: "whole" },
      { type: "reasoning", text: "Hm." },
      { type: "text", text: "Done." },
    ]);
  });

  test("repeated events of a running step show the newest output in one row", () => {
    const line = (result: string): StreamEvent => ({ type: "step", id: "s", name: "build", status: "running", result });
    const turn = [line("one"), line("two")].reduce(reduceTurn, newTurn("t"));
    expect(turn.content).toEqual([{ type: "step", id: "s", name: "build", status: "running", result: "two" }]);
  });
});

describe("a thread", () => {
  test("an accepted message becomes the newest one, and its answer a message with the same key", () => {
    let thread = reduceThread(loaded("t1"), { type: "outbox/added", id: "conv_1", outgoing: outgoing("k") });
    expect(openRows(thread).map((row) => row.kind)).toEqual(["outgoing"]);
    thread = reduceThread(thread, { type: "outbox/accepted", id: "conv_1", key: "k", turn_id: "t2" });
    const live = openRows(thread)[0]?.key;
    thread = reduceThread(thread, {
      type: "turn/events",
      id: "conv_1",
      turn_id: "t2",
      events: [began, says("Hi"), { type: "result", message_id: "m2", message: "Hi", content: [{ type: "text", text: "Hi" }], usage: null }],
      now: 5,
    });
    expect(thread.live).toBeNull();
    expect(settledRows(thread).at(-1)?.key).toBe(live);
    expect(thread.messages.map((one) => one.status)).toEqual(["succeeded", "succeeded", "succeeded", "succeeded"]);
  });

  test("a message that is sent while another is answered is queued until the transcript has it", () => {
    let thread = reduceThread(loaded("t1"), { type: "turn/followed", id: "conv_1", turn_id: "t2" });
    thread = reduceThread(thread, { type: "outbox/added", id: "conv_1", outgoing: outgoing("k") });
    thread = reduceThread(thread, { type: "outbox/accepted", id: "conv_1", key: "k", turn_id: "t3" });
    expect(thread.outbox[0]?.status).toBe("queued");
    const fresh = page([message("t2", "user"), message("t2", "assistant"), message("t3", "user", { status: "running" })], "older");
    thread = reduceThread(thread, { type: "thread/refreshed", id: "conv_1", conversation: conversation("conv_1"), page: fresh });
    expect(thread.outbox).toEqual([]);
    expect(thread.live).toBeNull();
  });

  test("the newest messages replace the end and keep earlier ones", () => {
    const thread = loaded("t1", "t2");
    const fresh = page([message("t2", "user"), message("t2", "assistant"), message("t3", "user")], "elsewhere");
    const after = reduceThread(thread, { type: "thread/refreshed", id: "conv_1", conversation: conversation("conv_1"), page: fresh });
    expect(after.messages.map((one) => `${one.turn_id} ${one.role}`)).toEqual(["t1 user", "t1 assistant", "t2 user", "t2 assistant", "t3 user"]);
    expect(after.older).toBe("older");
    expect(after.messages[0]).toBe(thread.messages[0]);
  });

  test("a refresh without news keeps the same messages", () => {
    const thread = loaded("t1");
    const same = page([message("t1", "user"), message("t1", "assistant")], "older");
    expect(reduceThread(thread, { type: "thread/refreshed", id: "conv_1", conversation: conversation("conv_1"), page: same }).messages).toBe(thread.messages);
  });

  test("a switched branch replaces everything", () => {
    const other = page([message("t1", "user"), message("t9", "user")]);
    const thread = reduceThread(loaded("t1", "t2"), { type: "thread/refreshed", id: "conv_1", conversation: conversation("conv_1"), page: other });
    expect(thread.messages.map((one) => one.turn_id)).toEqual(["t1", "t9"]);
    expect(thread.older).toBeNull();
  });

  test("an edit replaces its turn and all turns after it", () => {
    const thread = reduceThread(loaded("t1", "t2"), { type: "branch/started", id: "conv_1", turn_id: "t1", new_turn_id: "t3", edited: { text: "Other", files: [] } });
    expect(thread.messages).toHaveLength(1);
    expect(thread.messages[0]).toMatchObject({ turn_id: "t3", content: [{ type: "text", text: "Other" }], siblings: ["t1", "t3"], versions: [["t1"], ["t3"]] });
    expect(thread.live?.id).toBe("t3");
  });

  test("a regenerated answer is another version of the answer, not of the question", () => {
    const again = reduceThread(loaded("t1"), { type: "branch/started", id: "conv_1", turn_id: "t1", new_turn_id: "t2", edited: null, now: 7 });
    expect(again.messages[0]).toMatchObject({ versions: [["t1", "t2"]], created_at: 7 });
    const edited = reduceThread(again, { type: "branch/started", id: "conv_1", turn_id: "t2", new_turn_id: "t3", edited: { text: "Other", files: [] } });
    expect(edited.messages[0]).toMatchObject({ versions: [["t1", "t2"], ["t3"]] });
  });

  test("a turn that is followed again shows its known parts until its events are replayed", () => {
    const before = reduceThread(loaded("t1"), { type: "turn/followed", id: "conv_1", turn_id: "t2" });
    const heard = reduceThread(before, { type: "turn/events", id: "conv_1", turn_id: "t2", events: [began, says("Hello ")], now: 1, isReplay: true });
    const again = reduceThread(heard, { type: "turn/followed", id: "conv_1", turn_id: "t2" });
    expect(again.live?.text).toBe("Hello ");
    const replayed = reduceThread(again, { type: "turn/events", id: "conv_1", turn_id: "t2", events: [began, says("Hello there")], now: 1, isReplay: true });
    expect(replayed.live?.text).toBe("Hello there");
    const more = reduceThread(replayed, { type: "turn/events", id: "conv_1", turn_id: "t2", events: [says(".")], now: 1, isReplay: false });
    expect(more.live?.text).toBe("Hello there.");
  });

  test("earlier messages come before, each once", () => {
    const thread = loaded("t2");
    const after = reduceThread(thread, { type: "thread/older", id: "conv_1", page: page([message("t1", "user"), message("t1", "assistant"), message("t2", "user")]) });
    expect(after.messages.map((one) => one.turn_id)).toEqual(["t1", "t1", "t2", "t2"]);
    expect(after.older).toBeNull();
  });

  test("a turn that failed without an answer gets its own row, with the reason", () => {
    const failed = page([message("t1", "user", { status: "failed", error: { code: "x", message: "why" } })]);
    const thread = reduceThread(newThread("conv_1"), { type: "thread/loaded", id: "conv_1", conversation: conversation("conv_1"), page: failed });
    const [asked, ending] = settledRows(thread);
    expect(asked?.kind).toBe("message");
    expect(ending).toMatchObject({ kind: "ending", failure: { message: "why" } });
  });
});
