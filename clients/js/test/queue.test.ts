/** Queued messages: the page shows them in the server's order, each message once. */
import { describe, expect, test } from "vitest";

import { type Conversation, type FileRef, isConsistent, type Message, newThread, openRows, type OutgoingMessage, type QueuedTurn, reduceThread, sentByThisPage, type Thread } from "../src/index.js";

const file: FileRef = { type: "file", file_id: "file_1", name: "notes.txt", mime_type: "text/plain", size: 3 };

const question = (turn: string, status: Message["status"], more: Partial<Message> = {}): Message => ({
  id: `msg_${turn}`,
  conversation_id: "conv_1",
  turn_id: turn,
  role: "user",
  content: [{ type: "text", text: `text of ${turn}` }],
  attachments: [],
  sources: [],
  usage: null,
  status,
  error: null,
  model: null,
  metadata: {},
  created_at: 7,
  ...more,
});

const queued = (turn: string, more: Partial<Message> = {}): QueuedTurn => ({ id: turn, events_url: "", message: question(turn, "queued", more) });

const sent = (key: string, turnId: string | null, more: Partial<OutgoingMessage> = {}): OutgoingMessage => ({
  key,
  text: key,
  attachments: [],
  agent_id: null,
  model: null,
  if_busy: "enqueue",
  status: turnId ? "queued" : "sending",
  turn_id: turnId,
  error: null,
  created_at: 1,
  ...more,
});

const conversation = (running: string | null, queue: QueuedTurn[] | undefined): Conversation =>
  ({ id: "conv_1", head_turn_id: running, running_turn: running && { id: running, events_url: "" }, queued_turns: queue }) as Conversation;

/** The newest first, as the server pages. */
const page = (...messages: Message[]) => ({ data: messages.toReversed(), next_cursor: null });

function refreshed(thread: Thread, conversation: Conversation, messages: Message[], known: readonly OutgoingMessage[] = []): Thread {
  return reduceThread(thread, { type: "thread/refreshed", id: "conv_1", conversation, page: page(...messages), known });
}

const added = (thread: Thread, outgoing: OutgoingMessage) => reduceThread(thread, { type: "outbox/added", id: "conv_1", outgoing });
const busy = () => reduceThread(refreshed(newThread("conv_1"), conversation("t1", []), [question("t1", "running")]), { type: "turn/followed", id: "conv_1", turn_id: "t1" });
const shown = (thread: Thread) => openRows(thread).map((row) => (row.kind === "outgoing" ? `${row.outgoing.status} ${row.outgoing.turn_id}` : row.key));

describe("a queue", () => {
  test("is shown below the answer that is being written, with text and files", () => {
    const thread = refreshed(busy(), conversation("t1", [queued("t2", { attachments: [file] }), queued("t3")]), [question("t1", "running")]);
    expect(shown(thread)).toEqual(["t1:assistant", "queued t2", "queued t3"]);
    expect(thread.outbox[0]).toMatchObject({ text: "text of t2", attachments: [file], created_at: 7 });
  });

  test("keeps the page's own values of a message, in the order of the server", () => {
    const own = sent("own", "t3", { branch: "edit" });
    const thread = refreshed(added(busy(), own), conversation("t1", [queued("t2"), queued("t3")]), [question("t1", "running")], [own]);
    expect(shown(thread)).toEqual(["t1:assistant", "queued t2", "queued t3"]);
    expect(thread.outbox[1]).toBe(own);
    const reloaded = refreshed(newThread("conv_1"), conversation("t1", [queued("t3")]), [question("t1", "running")], [own]);
    expect(reloaded.outbox).toEqual([own]);
  });

  test("drops a message when the transcript has it", () => {
    const before = refreshed(busy(), conversation("t1", [queued("t2"), queued("t3")]), [question("t1", "running")]);
    const started = [question("t1", "succeeded"), question("t2", "running")];
    expect(shown(refreshed(before, conversation("t2", [queued("t3")]), started, before.outbox))).toEqual(["queued t3"]);
    // The transcript was read a moment later than the queue.
    expect(shown(refreshed(before, conversation("t1", [queued("t2"), queued("t3")]), started, before.outbox))).toEqual(["queued t3"]);
  });

  test("drops what another client cancelled, and not what was sent after the request", () => {
    const before = added(busy(), sent("old", "t2"));
    const after = added(before, sent("new", "t3"));
    expect(shown(refreshed(after, conversation("t1", []), [question("t1", "running")], before.outbox))).toEqual(["t1:assistant", "queued t3"]);
  });

  test("keeps messages that are not sent yet or were refused", () => {
    const before = added(added(busy(), sent("a", null)), sent("b", null, { status: "refused" }));
    const thread = refreshed(before, conversation("t1", [queued("t2")]), [question("t1", "running")]);
    expect(shown(thread)).toEqual(["t1:assistant", "queued t2", "sending null", "refused null"]);
  });

  test("shows a message once if the queue lists it before the response to its request comes", () => {
    const before = refreshed(added(busy(), sent("k", null)), conversation("t1", [queued("t2")]), [question("t1", "running")]);
    const thread = reduceThread(before, { type: "outbox/accepted", id: "conv_1", key: "k", turn_id: "t2" });
    expect(thread.outbox.map((one) => one.key)).toEqual(["k"]);
    expect(added(before, sent("branch", "t2")).outbox.filter((one) => one.turn_id === "t2")).toHaveLength(1);
  });

  test("queues a turn again that the page took for running", () => {
    const before = reduceThread(added(refreshed(newThread("conv_1"), conversation(null, []), []), sent("k", null)), { type: "outbox/accepted", id: "conv_1", key: "k", turn_id: "t2" });
    expect(before.live?.id).toBe("t2");
    const behind = refreshed(before, conversation("t1", [queued("t2")]), [question("t1", "running")]);
    expect([behind.live, shown(behind)]).toEqual([null, ["queued t2"]]);
    const next = refreshed(before, conversation(null, [queued("t2")]), []);
    expect(shown(next)).toEqual(["t2:assistant"]);
    expect(next.messages.map((message) => message.turn_id)).toEqual(["t2"]);
  });

  test("separates messages of this page from those of other clients", () => {
    const thread = refreshed(added(busy(), sent("own", "t3")), conversation("t1", [queued("t2"), queued("t3")]), [question("t1", "running")]);
    expect(sentByThisPage(thread).map((one) => one.key)).toEqual(["own"]);
    expect(sentByThisPage(added(thread, sent("next", null))).map((one) => one.key)).toEqual(["own", "next"]);
  });

  test("stays as it is if the server sends none", () => {
    const before = added(busy(), sent("own", "t2"));
    expect(refreshed(before, conversation("t1", undefined), [question("t1", "running")], before.outbox).outbox).toEqual(before.outbox);
  });
});

test("a conversation and its messages are consistent if they agree on the running turn", () => {
  expect(isConsistent(conversation(null, []), page())).toBe(true);
  expect(isConsistent(conversation("t2", []), page(question("t1", "succeeded"), question("t2", "running")))).toBe(true);
  expect(isConsistent(conversation("t2", []), page(question("t1", "running")))).toBe(false);
  expect(isConsistent(conversation("t2", []), page(question("t1", "succeeded")))).toBe(false);
  // A turn that runs on another branch than the head. It becomes the head when it ends.
  const branching = { ...conversation("t2", []), head_turn_id: "t1" };
  expect(isConsistent(branching, page(question("t2", "running")))).toBe(true);
  expect(isConsistent(branching, page(question("t1", "succeeded")))).toBe(false);
  expect(isConsistent(conversation("t1", []), page(question("t1", "succeeded"), question("t2", "running")))).toBe(false);
});
