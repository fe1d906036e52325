/** Turns that wait, as a thread holds them: their calls, decisions about them, and words that steer a turn. */
import { readFileSync } from "node:fs";
import { join } from "node:path";

import { describe, expect, test } from "vitest";

import { type Call, type Conversation, decisionKey, decisionOf, Decoder, isConsistent, isSettled, mayDecide, type Me, type Message, messageKey, newThread, newTurn, openCalls, openRows, type OutgoingMessage, parseExact, reduceThread, reduceTurn, settledRows, SseParser, type StreamEvent, type Thread, Turnkeep, waitBadge, type WaitingFor, waitingFor, withSteers, writeExact } from "../src/index.js";

const decoder = new Decoder();
const golden: StreamEvent[] = new SseParser()
  .feed(readFileSync(join(import.meta.dirname, "../../../tests/golden/waits.native.sse"), "utf8"))
  .flatMap((frame) => decoder.read(frame));
const until = (type: StreamEvent["type"]) => golden.slice(0, golden.findIndex((event) => event.type === type) + 1);
const TURN = (golden[0] as Extract<StreamEvent, { type: "turn" }>).turn_id;

const message = (role: "user" | "assistant", more: Partial<Message> = {}): Message => ({
  id: `msg_${role}`,
  conversation_id: "conv_1",
  turn_id: TURN,
  role,
  content: [{ type: "text", text: role }],
  attachments: [],
  sources: [],
  usage: null,
  status: "running",
  error: null,
  model: null,
  metadata: {},
  created_at: 1,
  ...more,
});
const conversation = { id: "conv_1", user_id: "user_1", running_turn: { id: TURN, events_url: "", waiting_for: "approval" } } as Conversation;
const me = { user_id: "user_1", role: "member" } as Me;

function waiting(events: readonly StreamEvent[] = until("client_calls")): Thread {
  const followed = reduceThread({ ...newThread("conv_1"), status: "ready", conversation, messages: [message("user")] }, { type: "turn/followed", id: "conv_1", turn_id: TURN });
  return reduceThread(followed, { type: "turn/events", id: "conv_1", turn_id: TURN, events, now: 1 });
}

const waitOf = (thread: Thread) => {
  const wait = thread.live?.wait;
  if (!wait) throw new Error("The turn does not wait.");
  return wait;
};
const facts = (open: readonly string[], more: Partial<WaitingFor> = {}): WaitingFor => {
  const { approvals, expires_at } = waitOf(waiting());
  return { type: "approval", calls: approvals.filter((call) => open.includes(call.id)) as WaitingFor["calls"], expires_at, ...more };
};

describe("a turn that waits", () => {
  test("has its calls, and has not ended", () => {
    const turn = until("client_calls").reduce(reduceTurn, newTurn(TURN));
    expect(turn.status).toBe("waiting");
    expect(isSettled(turn)).toBe(false);
    expect(turn.wait?.approvals.map((call) => call.args)).toEqual([{ amount: 5 }, { amount: 500 }]);
    expect(turn.wait?.clientCalls.map((call) => call.name)).toEqual(["battery"]);
    expect(waitingFor(turn)).toBe("approval");
  });

  test("goes on with the next `turn` event", () => {
    const at = golden.findLastIndex((event) => event.type === "turn");
    const turn = golden.slice(0, at + 1).reduce(reduceTurn, newTurn(TURN));
    expect([turn.status, turn.wait]).toEqual(["running", null]);
  });

  test("waits for nothing once it has ended", () => {
    const stopped = reduceTurn(until("approval").reduce(reduceTurn, newTurn(TURN)), { type: "error", code: "cancelled", message: "Stopped." });
    expect([stopped.status, stopped.wait]).toEqual(["cancelled", null]);
  });

  test("is consistent with messages that wait", () => {
    expect(isConsistent(conversation, { data: [message("user", { status: "waiting" })], next_cursor: null })).toBe(true);
  });

  test("is not taken for an answered one by a refresh", () => {
    const page = { data: [message("user", { status: "waiting" })], next_cursor: null };
    const thread = reduceThread(waiting(), { type: "thread/refreshed", id: "conv_1", conversation, page });
    expect(thread.live?.wait).not.toBeNull();
  });
});

describe("decisions", () => {
  test("of others are known from the server, and stay after a replay", () => {
    const [first, second] = waitOf(waiting()).approvals.map((call) => call.id) as [string, string];
    const read = reduceThread(waiting(), { type: "wait/read", id: "conv_1", turn_id: TURN, waiting_for: facts([second]) });
    expect(decisionOf(read, waitOf(read), first)).toMatchObject({ status: "decided", decision: null, isOthers: true });
    const replayed = reduceThread(read, { type: "turn/events", id: "conv_1", turn_id: TURN, events: until("client_calls"), now: 1, isReplay: true });
    expect(openCalls(replayed, waitOf(replayed)).map((call) => call.id)).toEqual([second]);
  });

  test("of others are told by the stream, one by one", () => {
    const thread = waiting(until("decided"));
    const [first, second] = waitOf(thread).approvals.map((call) => call.id) as [string, string];
    expect(decisionOf(thread, waitOf(thread), first)).toEqual({ status: "decided", decision: "allow", isOthers: true, by: "ann", isEdited: true });
    expect(openCalls(thread, waitOf(thread)).map((call) => call.id)).toEqual([second]);
    const key = decisionKey(waitOf(thread), first);
    const own = reduceThread(thread, { type: "call/decided", id: "conv_1", key, decision: { status: "sending", decision: "deny" } });
    expect(decisionOf(own, waitOf(own), first)?.status).toBe("sending");
    const failed = reduceThread(thread, { type: "call/decided", id: "conv_1", key, decision: { status: "failed", decision: null, error: "…" } });
    expect(decisionOf(failed, waitOf(failed), first)).toMatchObject({ status: "decided", by: "ann" });
  });

  test("of another wait do not count, even if the call has the same id", () => {
    const thread = waiting();
    const [first] = waitOf(thread).approvals.map((call) => call.id) as [string];
    const decided = reduceThread(thread, { type: "call/decided", id: "conv_1", key: decisionKey(waitOf(thread), first), decision: { status: "decided", decision: "allow" } });
    expect(openCalls(decided, waitOf(decided))).toHaveLength(1);
    expect(openCalls(decided, { ...waitOf(decided), expires_at: 2 })).toHaveLength(2);
    const late = reduceThread(thread, { type: "wait/read", id: "conv_1", turn_id: TURN, waiting_for: { ...facts([]), expires_at: 2 } });
    expect(late).toBe(thread);
  });

  test.each([
    [["author"], "member", true],
    [["admin"], "member", false],
    [["admin"], "admin", true],
    [["author", "admin"], "member", true],
  ] as const)("are those of %j: a %s may decide: %s", (approvers, role, isAllowed) => {
    const ids = waitOf(waiting()).approvals.map((call) => call.id);
    const thread = reduceThread(waiting(), { type: "wait/read", id: "conv_1", turn_id: TURN, waiting_for: facts(ids, { approvers: [...approvers] }) });
    expect(mayDecide(thread, { ...me, role })).toBe(isAllowed);
    expect(waitBadge(conversation, thread, { ...me, role })).toBe(isAllowed ? "yours" : "others");
  });
});

describe("words that steer", () => {
  const steered = golden.find((event) => event.type === "steered") as Extract<StreamEvent, { type: "steered" }>;
  const outgoing: OutgoingMessage = { key: "k", text: steered.message, attachments: [], agent_id: null, model: null, if_busy: "enqueue", steers: TURN, status: "sending", turn_id: null, error: null, created_at: 1 };
  const added = () => reduceThread(waiting(), { type: "outbox/added", id: "conv_1", outgoing });
  const accepted = (thread: Thread) => reduceThread(thread, { type: "outbox/accepted", id: "conv_1", key: "k", turn_id: "turn_queued", message_id: steered.message_id });
  const ended = (thread: Thread) => reduceThread(thread, { type: "turn/events", id: "conv_1", turn_id: TURN, events: golden.slice(until("client_calls").length), now: 2 });
  const kinds = (thread: Thread) => [...settledRows(thread), ...openRows(thread)].map((row) => row.key);

  test("wait in the queue until the turn has them", () => {
    const thread = accepted(added());
    expect(thread.outbox).toMatchObject([{ status: "queued", turn_id: "turn_queued", message_id: steered.message_id }]);
    expect(ended(thread).outbox).toEqual([]);
  });

  test("are shown once if the turn has them before the response comes", () => {
    const before = reduceThread(added(), { type: "turn/events", id: "conv_1", turn_id: TURN, events: golden.slice(until("client_calls").length, -1), now: 2 });
    expect(accepted(before).outbox).toEqual([]);
    expect(accepted(ended(added())).outbox).toEqual([]);
  });

  test("stand in the answer at their place, live and after a reload", () => {
    const live = ended(accepted(added()));
    expect(kinds(live)).toEqual([`${TURN}:user`, `${TURN}:assistant`]);
    const row = settledRows(live).at(-1);
    expect(row?.kind === "message" && row.steered).toEqual([{ message_id: steered.message_id, text: steered.message, at: 4 }]);
    // A reload has the words as a message before the answer, until the events of the turn have told their place.
    const words = message("user", { id: steered.message_id, status: "succeeded" });
    const data = [message("assistant", { status: "succeeded" }), words, message("user", { status: "succeeded" })];
    const loaded = reduceThread(newThread("conv_1"), { type: "thread/loaded", id: "conv_1", conversation, page: { data, next_cursor: null } });
    expect(kinds(loaded)).toEqual([`${TURN}:user`, `${TURN}:steer:${steered.message_id}`, `${TURN}:assistant`]);
    const placed = reduceThread(loaded, { type: "turn/steered", id: "conv_1", turn_id: TURN, steered: live.steered[TURN] ?? [] });
    expect(kinds(placed)).toEqual([`${TURN}:user`, `${TURN}:assistant`]);
  });

  test("stay in the thread if the turn was stopped without an answer", () => {
    const words = message("user", { id: steered.message_id, status: "cancelled" });
    const data = [words, message("user", { status: "cancelled" })];
    const thread = reduceThread({ ...newThread("conv_1"), steered: { [TURN]: [{ message_id: steered.message_id, text: "", at: 0 }] } }, { type: "thread/loaded", id: "conv_1", conversation, page: { data, next_cursor: null } });
    expect(kinds(thread)).toEqual([`${TURN}:user`, `${TURN}:steer:${steered.message_id}`, `${TURN}:ending`]);
  });

  test("are the next turn if the turn ended before", () => {
    const over = golden.filter((event) => event.type !== "steered").slice(until("client_calls").length);
    const thread = accepted(reduceThread(added(), { type: "turn/events", id: "conv_1", turn_id: TURN, events: over, now: 2 }));
    expect(thread.live?.id).toBe("turn_queued");
    expect(thread.messages.at(-1)).toMatchObject({ turn_id: "turn_queued", role: "user" });
    expect(thread.outbox).toEqual([]);
  });

  test("do not hide the question if a page of messages begins with them", () => {
    const words = message("user", { id: steered.message_id, status: "succeeded" });
    const tail = reduceThread(newThread("conv_1"), { type: "thread/loaded", id: "conv_1", conversation, page: { data: [message("assistant", { status: "succeeded" }), words], next_cursor: "c" } });
    const whole = reduceThread(tail, { type: "thread/older", id: "conv_1", page: { data: [message("user", { status: "succeeded" })], next_cursor: null } });
    expect(whole.messages.map(messageKey)).toEqual([`${TURN}:user`, `${TURN}:steer:${steered.message_id}`, `${TURN}:assistant`]);
    const again = reduceThread(whole, { type: "thread/refreshed", id: "conv_1", conversation, page: { data: [message("assistant", { status: "succeeded" }), words], next_cursor: "c" } });
    expect(again.messages).toEqual(whole.messages);
    expect(withSteers(whole.messages)).toEqual(whole.messages);
  });
});

describe("arguments", () => {
  const EXACT = '{"id":9007199254740993,"price":1.0,"small":-1e-7,"list":[18446744073709551615,"9007199254740993"],"text":"a \\" 12 \\\\","none":null,"is":true}';

  test("keep their numbers as they are written", () => {
    expect(writeExact(parseExact(EXACT))).toBe(EXACT);
    expect(writeExact(parseExact('{"a": {"b": 1.50}}'), 2)).toBe('{\n  "a": {\n    "b": 1.50\n  }\n}');
    expect(() => parseExact('{"a": 01}')).toThrow(SyntaxError);
    expect(() => parseExact("{1}")).toThrow(SyntaxError);
  });

  test("are exact in the card of a stream", () => {
    const data = `{"type":"approval","calls":[{"id":"c","name":"pay","args":${EXACT}}],"expires_at":5}`;
    const [event] = new Decoder().read({ event: "approval", data, id: "1" });
    if (event?.type !== "approval") throw new Error("This is no approval.");
    expect(writeExact(event.calls[0]?.exactArgs)).toBe(EXACT);
    expect(event.expires_at).toBe(5);
  });

  test("are exact where they are read and sent", async () => {
    const sent: unknown[] = [];
    const answer = `{"id":"turn_1","last":7,"waiting_for":{"type":"approval","calls":[{"id":"c","name":"pay","args":${EXACT}}],"expires_at":5}}`;
    const fetch = (_: unknown, init?: RequestInit) => {
      sent.push(init?.body);
      return Promise.resolve(new Response(answer));
    };
    const { turns } = new Turnkeep({ baseUrl: "http://127.0.0.1", fetch });
    const waits = (await turns.get("turn_1")).waiting_for;
    const [call] = (waits?.calls ?? []) as Call[];
    expect([waits?.expires_at, writeExact(call?.exactArgs)]).toEqual([5, EXACT]);
    expect(call?.args).toMatchObject({ price: 1, none: null });
    await turns.approve("turn_1", "c", { args: call?.exactArgs as Record<string, never> });
    expect(sent[1]).toBe(`{"decisions":[{"args":${EXACT},"call_id":"c","decision":"allow"}]}`);
  });
});
