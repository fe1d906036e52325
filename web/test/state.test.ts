/** The reducers of turns, threads and the conversation list. */
import { describe, expect, test } from "vitest";

import { byAge, newConversationList, reduceConversationList, snippetPieces } from "../src/state/conversationList";
import { pathOf, routeOf } from "../src/state/route";
import { openRows, settledRows } from "../src/state/selectors";
import { NEW, newState, reduce } from "../src/state/state";
import { newThread, type OutgoingMessage, reduceThread, type Thread } from "../src/state/thread";
import { newTurn, reduceTurn, shownParts, waitingFor, wholeContent } from "../src/state/turn";
import type { StreamEvent } from "../src/stream/events";
import type { Conversation, Message } from "../src/wire/types";

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
    turn = reduceTurn(turn, says("word"));
    expect(waitingFor(turn)).toBe("words");
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
    expect(thread.messages[0]).toMatchObject({ turn_id: "t3", content: [{ type: "text", text: "Other" }], siblings: ["t1", "t3"] });
    expect(thread.live?.id).toBe("t3");
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

  test("a new conversation moves to its id with its outgoing messages", () => {
    let state = reduce(newState(routeOf("/")), { type: "outbox/added", id: NEW, outgoing: outgoing("k") });
    state = reduce(state, { type: "thread/created", id: "conv_2" });
    expect(state.threads[NEW]).toBeUndefined();
    expect(state.threads["conv_2"]?.outbox).toHaveLength(1);
  });
});

describe("the list", () => {
  const listed = (...ids: string[]) =>
    reduceConversationList(newConversationList, { type: "conversations/loaded", query: "", page: { data: ids.map((id, at) => conversation(id, { updated_at: 100 - at })), next_cursor: "more" } });

  test("the response to an earlier search is ignored", () => {
    const list = reduceConversationList(newConversationList, { type: "conversations/searched", query: "new" });
    expect(reduceConversationList(list, { type: "conversations/loaded", query: "old", page: { data: [conversation("a")], next_cursor: null } })).toBe(list);
  });

  test("a deleted conversation can be restored to its place", () => {
    const removed = reduceConversationList(listed("a", "b", "c"), { type: "conversations/removed", id: "b" });
    expect(removed.items.map((one) => one.id)).toEqual(["a", "c"]);
    const restored = reduceConversationList(removed, { type: "conversations/restored", conversation: conversation("b", { updated_at: 99 }) });
    expect(restored.items.map((one) => one.id)).toEqual(["a", "b", "c"]);
    expect(restored.removed).toBeNull();
  });

  test("a refresh keeps the pages that were loaded after the first", () => {
    const fresh = { data: [conversation("d", { updated_at: 200 }), conversation("a", { updated_at: 100 })], next_cursor: "c" };
    const list = reduceConversationList(listed("a", "b", "c"), { type: "conversations/refreshed", query: "", page: fresh, known: new Set(["a", "b", "c"]) });
    expect(list.items.map((one) => one.id)).toEqual(["d", "a", "b", "c"]);
    expect(list.cursor).toBe("more");
  });

  test("a refresh keeps a conversation that was begun while its request was under way", () => {
    const begun = reduceConversationList(listed("a", "b"), { type: "conversations/changed", conversation: conversation("new", { updated_at: 300 }) });
    const page = { data: [conversation("a", { updated_at: 100 })], next_cursor: null };
    const list = reduceConversationList(begun, { type: "conversations/refreshed", query: "", page, known: new Set(["a", "b"]) });
    expect(list.items.map((one) => one.id)).toEqual(["new", "a"]);
  });

  test("is grouped by the calendar, not by hours", () => {
    const now = new Date(2026, 4, 10, 0, 30);
    const at = (date: Date) => conversation(String(date.getTime()), { updated_at: date.getTime() });
    const groups = byAge([at(new Date(2026, 4, 10, 0, 10)), at(new Date(2026, 4, 9, 23, 50)), at(new Date(2026, 4, 5)), at(new Date(2026, 3, 20)), at(new Date(2025, 0, 1))], now);
    expect(groups.map((group) => group.age)).toEqual(["today", "yesterday", "week", "month", "older"]);
  });

  test("matches in a snippet are between two stars", () => {
    expect(snippetPieces("…the **cat** sat**s**")).toEqual([
      { text: "…the ", isMatch: false },
      { text: "cat", isMatch: true },
      { text: " sat", isMatch: false },
      { text: "s", isMatch: true },
    ]);
  });
});

test("addresses become routes and back", () => {
  const id = `conv_${"a".repeat(32)}`;
  for (const path of ["/", `/c/${id}`, "/settings/usage", "/settings/keys"]) expect(pathOf(routeOf(path))).toBe(path);
  expect(routeOf("/c/nonsense")).toEqual({ page: "chat", conversationId: null });
  expect(routeOf("/settings/nonsense")).toEqual({ page: "settings", section: "usage" });
});
