/** Edits and answers that are given again: what is sent, what waits, and what a refusal leaves as it was. */
import { beforeEach, describe, expect, test, vi } from "vitest";

import { Branches, type Turns } from "../src/effects/branches";
import { Desk } from "../src/effects/desk";
import { Tabs } from "../src/effects/tabs";
import { Uploads } from "../src/effects/uploads";
import { attachmentIds } from "../src/state/editing";
import { newState } from "../src/state/state";
import { createStore } from "../src/state/store";
import type { Outgoing } from "../src/state/thread";
import { ApiError } from "../src/wire/client";
import * as routes from "../src/wire/routes";
import type { Conversation, FileRef, Me, Message } from "../src/wire/types";

vi.mock("../src/wire/routes");

const file = (id: string): FileRef => ({ type: "file", file_id: id, name: `${id}.txt`, mime_type: "text/plain", size: 3 });

const question: Message = {
  id: "m1",
  conversation_id: "conv_1",
  turn_id: "t1",
  role: "user",
  content: [{ type: "text", text: "Cats?" }],
  attachments: [file("a"), file("b")],
  sources: [],
  usage: null,
  status: "succeeded",
  created_at: 1,
};

function opened(liveId: string | null = null) {
  const store = createStore(newState({ page: "chat", conversationId: "conv_1" }));
  store.dispatch({ type: "session", session: "in", me: { max_files_per_message: 3, max_file_bytes: 100 } as Me });
  store.dispatch({ type: "thread/loaded", id: "conv_1", conversation: { id: "conv_1" } as Conversation, page: { data: [question], next_cursor: null } });
  if (liveId) store.dispatch({ type: "turn/followed", id: "conv_1", turn_id: liveId });
  const waiting: Outgoing[] = [];
  const followed: string[] = [];
  const complaints: unknown[] = [];
  const said: string[] = [];
  const turns: Turns = {
    insist: (asked) => asked(),
    follow: (_, turnId) => followed.push(turnId),
    wait: (_, outgoing) => waiting.push(outgoing),
    refresh: () => Promise.resolve(),
    say: (text) => said.push(text),
    complain: (error) => complaints.push(error),
    isSignedOut: () => false,
    go: () => undefined,
  };
  const uploads = new Uploads(store, turns);
  const branches = new Branches(store, new Tabs(), uploads, turns);
  const thread = () => store.get().threads["conv_1"];
  return { store, branches, thread, waiting, followed, complaints, said };
}

const accepts = (turnId: string) => Promise.resolve({ turn_id: turnId, conversation_id: "conv_1", events_url: "" });

const somebody = { user_id: "user_1", workspace_id: "ws_1" } as Me;

function storage(name: "localStorage" | "sessionStorage" = "sessionStorage") {
  const stored = new Map<string, string>();
  vi.stubGlobal(name, {
    getItem: (item: string) => stored.get(item) ?? null,
    setItem: (item: string, value: string) => stored.set(item, value),
    removeItem: (item: string) => stored.delete(item),
  });
  return stored;
}

function signsIn(me: Me) {
  vi.mocked(routes.me).mockResolvedValue(me);
  vi.mocked(routes.openapi).mockResolvedValue({ paths: {} });
  for (const asked of [routes.models, routes.agents, routes.conversations, routes.conversation, routes.messages]) vi.mocked(asked as () => Promise<never>).mockReturnValue(new Promise(() => undefined));
}

beforeEach(() => {
  vi.resetAllMocks();
  vi.stubGlobal("navigator", { onLine: true });
});

describe("an edit", () => {
  test("names no files where none were changed, and else exactly those that it has", () => {
    expect(attachmentIds(question, [file("a"), file("b")])).toEqual({});
    expect(attachmentIds(question, [file("b")])).toEqual({ attachment_ids: ["b"] });
    expect(attachmentIds(question, [])).toEqual({ attachment_ids: [] });
    expect(attachmentIds({ ...question, attachments: [] }, [])).toEqual({});
  });

  test("takes the place of its question at once, with its words and its files", async () => {
    const { branches, thread, followed } = opened();
    vi.mocked(routes.edit).mockReturnValue(accepts("t2"));
    branches.edit("conv_1", question);
    branches.rewrite("conv_1", "t1", " Dogs? ");
    branches.dropFile("conv_1", "t1", "a");
    await branches.send("conv_1", "t1", "enqueue");
    expect(vi.mocked(routes.edit).mock.calls[0]?.slice(0, 3)).toEqual(["conv_1", "t1", { message: "Dogs?", if_busy: "enqueue", attachment_ids: ["b"] }]);
    expect(thread()?.messages).toMatchObject([{ turn_id: "t2", content: [{ text: "Dogs?" }], attachments: [{ file_id: "b" }] }]);
    expect(thread()?.edits).toEqual({});
    expect(followed).toEqual(["t2"]);
  });

  test("stays open as it is when it is refused", async () => {
    const { branches, thread, complaints } = opened();
    vi.mocked(routes.edit).mockRejectedValue(new ApiError(404, "not_found", "There is no such file."));
    branches.edit("conv_1", question);
    branches.rewrite("conv_1", "t1", "Dogs?");
    await branches.send("conv_1", "t1", "enqueue");
    expect(thread()?.edits["t1"]).toMatchObject({ text: "Dogs?", files: question.attachments, isSending: false });
    expect(complaints).toHaveLength(1);
  });

  test("waits with the other messages while an answer is written", async () => {
    const { branches, thread, waiting, followed } = opened("t9");
    vi.mocked(routes.edit).mockReturnValue(accepts("t2"));
    branches.edit("conv_1", question);
    await branches.send("conv_1", "t1", "interrupt");
    expect(waiting).toMatchObject([{ beside: "edit", turn_id: "t2", status: "queued", text: "Cats?" }]);
    expect(thread()?.messages).toEqual([question]);
    expect(followed).toEqual([]);
  });

  test("that is given up while the server takes it is stopped there", async () => {
    const { branches, thread, followed } = opened();
    let answer: (accepted: Awaited<ReturnType<typeof accepts>>) => void = () => undefined;
    vi.mocked(routes.edit).mockReturnValue(new Promise((resolve) => (answer = resolve)));
    branches.edit("conv_1", question);
    const sending = branches.send("conv_1", "t1", "enqueue");
    expect(thread()?.edits["t1"]?.isSending).toBe(true);
    branches.giveUp("conv_1", "t1");
    answer(await accepts("t2"));
    await sending;
    expect(routes.cancel).toHaveBeenCalledWith("t2");
    expect(thread()).toMatchObject({ messages: [question], edits: {} });
    expect(followed).toEqual([]);
  });

  test("that is given up on its way and opened again is another one", async () => {
    const { branches, thread, followed } = opened();
    let answer: (accepted: Awaited<ReturnType<typeof accepts>>) => void = () => undefined;
    vi.mocked(routes.edit).mockReturnValueOnce(new Promise((resolve) => (answer = resolve)));
    branches.edit("conv_1", question);
    const sending = branches.send("conv_1", "t1", "enqueue");
    branches.giveUp("conv_1", "t1");
    branches.edit("conv_1", question);
    branches.rewrite("conv_1", "t1", "Dogs?");
    answer(await accepts("t2"));
    await sending;
    expect(routes.cancel).toHaveBeenCalledWith("t2");
    expect(thread()).toMatchObject({ messages: [question], edits: { t1: { text: "Dogs?", isSending: false } } });
    expect(followed).toEqual([]);
  });

  test("can be sent while one that was given up is still on its way", async () => {
    const { branches, thread, followed } = opened();
    vi.mocked(routes.edit).mockReturnValueOnce(new Promise(() => undefined)).mockReturnValueOnce(accepts("t3"));
    branches.edit("conv_1", question);
    void branches.send("conv_1", "t1", "enqueue");
    branches.giveUp("conv_1", "t1");
    branches.edit("conv_1", question);
    branches.rewrite("conv_1", "t1", "Dogs?");
    await branches.send("conv_1", "t1", "enqueue");
    expect(thread()).toMatchObject({ messages: [{ turn_id: "t3", content: [{ text: "Dogs?" }] }], edits: {} });
    expect(followed).toEqual(["t3"]);
  });

  test("takes no files while it is on its way, and is sent once", () => {
    const { branches, store } = opened();
    vi.mocked(routes.edit).mockReturnValue(new Promise(() => undefined));
    vi.mocked(routes.promiseFile).mockReturnValue(new Promise(() => undefined));
    branches.edit("conv_1", question);
    void branches.send("conv_1", "t1", "enqueue");
    void branches.send("conv_1", "t1", "enqueue");
    branches.attach("conv_1", "t1", [new File(["c"], "c.txt")]);
    expect(store.get().attaching["edit:t1"] ?? []).toEqual([]);
    expect(routes.edit).toHaveBeenCalledTimes(1);
    expect(store.get().threads["conv_1"]?.edits["t1"]?.isSending).toBe(true);
  });

  test("counts the files that it keeps against the limit", () => {
    const { branches, store, said } = opened();
    vi.mocked(routes.promiseFile).mockReturnValue(new Promise(() => undefined));
    branches.edit("conv_1", question);
    branches.attach("conv_1", "t1", [new File([], "c.txt"), new File(["d"], "d.txt")]);
    expect(said).toContain("A message takes up to 3 files. The others were left out.");
    expect(store.get().attaching["conv_1"]).toBeUndefined();
  });
});

describe("an answer that is given again", () => {
  test("is asked for once, however often the button is pressed", async () => {
    const { branches } = opened();
    vi.mocked(routes.regenerate).mockReturnValue(accepts("t2"));
    await Promise.all([branches.again("conv_1", "t1", "enqueue"), branches.again("conv_1", "t1", "enqueue")]);
    expect(routes.regenerate).toHaveBeenCalledTimes(1);
  });

  test("does not take the stream from another thread that is in view by then", async () => {
    const { store, branches, thread, followed } = opened();
    vi.mocked(routes.regenerate).mockReturnValue(accepts("t2"));
    const asking = branches.again("conv_1", "t1", "enqueue");
    store.dispatch({ type: "route", route: { page: "chat", conversationId: "conv_2" } });
    await asking;
    expect(thread()?.live?.id).toBe("t2");
    expect(followed).toEqual([]);
    expect(routes.cancel).not.toHaveBeenCalled();
  });

  test("is not insisted on once its conversation is left", async () => {
    vi.useFakeTimers();
    const desk = new Desk(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    vi.mocked(routes.regenerate).mockRejectedValue(new ApiError(0, "unreachable", "Nobody answers."));
    const asking = desk.branches.again("conv_1", "t1", "enqueue");
    await vi.advanceTimersByTimeAsync(2_000);
    expect(routes.regenerate).toHaveBeenCalledTimes(2);
    desk.store.dispatch({ type: "route", route: { page: "chat", conversationId: "conv_2" } });
    await vi.advanceTimersByTimeAsync(10_000);
    await asking;
    expect(routes.regenerate).toHaveBeenCalledTimes(2);
    vi.useRealTimers();
  });
});

test("an edit that waits is kept for other tabs as what another page sent", () => {
  const stored = storage("localStorage");
  const desk = new Desk(createStore(newState({ page: "chat", conversationId: "conv_1" })));
  const outgoing: Outgoing = { key: "own", text: "Dogs?", attachments: [], agent_id: null, model: null, if_busy: "enqueue", beside: "edit", status: "queued", turn_id: "t2", error: null, created_at: 1 };
  desk.wait("conv_1", outgoing);
  expect(JSON.parse(stored.get("turnkeep:queued:conv_1") ?? "")).toMatchObject([{ key: "t2", beside: "edit", turn_id: "t2" }]);
  expect(desk.store.get().threads["conv_1"]?.outbox).toEqual([outgoing]);
  vi.unstubAllGlobals();
});

describe("a message on its way", () => {
  const outgoingOf = (desk: Desk) => desk.store.get().threads["conv_1"]?.outbox[0];

  test("that is taken back before anybody answered is not sent again", async () => {
    vi.useFakeTimers();
    const desk = new Desk(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    vi.mocked(routes.ask).mockRejectedValue(new ApiError(0, "unreachable", "Nobody answers."));
    const asking = desk.ask({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    await vi.advanceTimersByTimeAsync(100);
    desk.withdraw("conv_1", outgoingOf(desk)?.key ?? "");
    await vi.advanceTimersByTimeAsync(10_000);
    await asking;
    expect(routes.ask).toHaveBeenCalledTimes(1);
    vi.useRealTimers();
  });

  test("that is taken back while the server takes it is stopped there", async () => {
    const desk = new Desk(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    let answer: (accepted: Awaited<ReturnType<typeof accepts>>) => void = () => undefined;
    vi.mocked(routes.ask).mockReturnValue(new Promise((resolve) => (answer = resolve)));
    const asking = desk.ask({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    desk.withdraw("conv_1", outgoingOf(desk)?.key ?? "");
    answer(await accepts("t2"));
    await asking;
    expect(routes.cancel).toHaveBeenCalledWith("t2");
  });

  test.each([
    { ...somebody, user_id: "user_2" },
    { ...somebody, workspace_id: "ws_2" },
  ])("is forgotten where somebody else signs in", async (other) => {
    const stored = storage();
    const before = new Desk(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    before.store.dispatch({ type: "session", session: "in", me: somebody });
    vi.mocked(routes.ask).mockReturnValue(new Promise(() => undefined));
    void before.ask({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    expect(stored.size).toBe(1);

    const after = new Desk(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    signsIn(other);
    await after.signIn();
    expect(routes.ask).toHaveBeenCalledTimes(1);
    expect(outgoingOf(after)).toBeUndefined();
    expect(stored.size).toBe(0);
    vi.unstubAllGlobals();
  });

  test("is sent again after a reload, under the same key, until somebody has taken it", async () => {
    const stored = storage();
    const before = new Desk(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    before.store.dispatch({ type: "session", session: "in", me: somebody });
    vi.mocked(routes.ask).mockReturnValue(new Promise(() => undefined));
    void before.ask({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });

    const after = new Desk(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    signsIn(somebody);
    vi.mocked(routes.ask).mockRejectedValue(new ApiError(422, "invalid_request", "No."));
    await after.signIn();
    await vi.waitFor(() => expect(outgoingOf(after)).toMatchObject({ text: "Hello", status: "refused" }));
    const [first, second] = vi.mocked(routes.ask).mock.calls;
    expect(second).toEqual(first);
    after.withdraw("conv_1", outgoingOf(after)?.key ?? "");
    expect(stored.size).toBe(0);
    vi.unstubAllGlobals();
  });
});

describe("a second message in a new conversation", () => {
  type Answer = Awaited<ReturnType<typeof accepts>>;

  /** A desk where two messages were sent, and the answers to what the server was asked, to be given one by one. */
  function asked() {
    const answers: { resolve: (answer: Answer) => void; reject: (error: unknown) => void }[] = [];
    vi.mocked(routes.ask).mockImplementation(() => new Promise((resolve, reject) => answers.push({ resolve, reject })));
    vi.mocked(routes.conversation).mockReturnValue(new Promise(() => undefined));
    // It looks elsewhere meanwhile, so that nothing is followed.
    const desk = new Desk(createStore(newState({ page: "chat", conversationId: null })));
    const sending = ["one", "two"].map((text) => desk.ask({ text, attachments: [], agentId: null, model: null, ifBusy: "reject" }));
    desk.store.dispatch({ type: "route", route: { page: "chat", conversationId: "conv_9" } });
    const bodies = () => vi.mocked(routes.ask).mock.calls.map(([body]) => body);
    const outbox = (id: string) => desk.store.get().threads[id]?.outbox.map((one) => `${one.text} ${one.status}`);
    return { desk, answers, sending, bodies, outbox };
  }

  test("waits for the first and goes where that went", async () => {
    const { answers, sending, bodies, outbox } = asked();
    expect(bodies()).toMatchObject([{ message: "one", if_busy: "reject" }]);
    answers[0]?.resolve(await accepts("t1"));
    await sending[0];
    expect(bodies()[1]).toMatchObject({ message: "two", conversation_id: "conv_1", if_busy: "enqueue" });
    answers[1]?.resolve(await accepts("t2"));
    await sending[1];
    expect(outbox("conv_1")).toEqual(["two queued"]);
    expect(routes.cancel).not.toHaveBeenCalled();
  });

  test("is refused where it stands by then", async () => {
    const { desk, answers, sending, outbox } = asked();
    answers[0]?.resolve(await accepts("t1"));
    await sending[0];
    answers[1]?.reject(new ApiError(422, "invalid_request", "No."));
    await sending[1];
    expect(outbox("conv_1")).toEqual(["two refused"]);
    expect(desk.store.get().threads["new"]).toBeUndefined();
  });

  test("begins the conversation itself if the first is refused", async () => {
    const { answers, sending, bodies, outbox } = asked();
    answers[0]?.reject(new ApiError(422, "invalid_request", "No."));
    await sending[0];
    expect(bodies()[1]).not.toHaveProperty("conversation_id");
    answers[1]?.resolve(await accepts("t2"));
    await sending[1];
    expect(outbox("conv_1")).toEqual(["one refused"]);
  });

  test("begins the conversation itself if the first is taken back, and nothing is sent if it is taken back too", async () => {
    const { desk, answers, sending, bodies } = asked();
    const keys = desk.store.get().threads["new"]?.outbox.map((one) => one.key) ?? [];
    desk.withdraw("new", keys[0] ?? "");
    answers[0]?.resolve(await accepts("t1"));
    await sending[0];
    expect(routes.cancel).toHaveBeenCalledWith("t1");
    expect(bodies()[1]).not.toHaveProperty("conversation_id");

    const other = asked();
    for (const { key } of other.desk.store.get().threads["new"]?.outbox ?? []) other.desk.withdraw("new", key);
    other.answers[0]?.resolve(await accepts("t3"));
    await Promise.all(other.sending);
    expect(other.answers).toHaveLength(1);
  });

  test("is sent again after a reload to where it was sent before, in the same words", async () => {
    storage();
    const { desk, answers, sending, bodies } = asked();
    desk.store.dispatch({ type: "session", session: "in", me: somebody });
    answers[0]?.resolve(await accepts("t1"));
    await sending[0];
    expect(bodies()).toHaveLength(2);

    signsIn(somebody);
    await new Desk(createStore(newState({ page: "chat", conversationId: "conv_9" }))).signIn();
    const [, second, again] = vi.mocked(routes.ask).mock.calls;
    expect(again).toEqual(second);
    expect(again?.[0].conversation_id).toBe("conv_1");
    vi.unstubAllGlobals();
  });
});
