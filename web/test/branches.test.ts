/** Edits and regenerated answers: what is sent, what is queued, and what stays after a refusal. */
import { beforeEach, describe, expect, test, vi } from "vitest";

import { attachmentIds, type Conversation, type FileRef, type Me, type Message, type OutgoingMessage, TurnkeepError } from "@turnkeep/client";
import { Branches } from "../src/effects/branches";
import { createServices } from "../src/effects/services";
import { TabChannel } from "../src/effects/tabChannel";
import { Uploads } from "../src/effects/uploads";
import { threadId } from "../src/state/selectors";
import { newState } from "../src/state/state";
import { createStore } from "../src/state/store";
import * as routes from "../src/wire/routes";

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
  error: null,
  model: null,
  metadata: {},
  created_at: 1,
};

function opened(liveId: string | null = null) {
  const store = createStore(newState({ page: "chat", conversationId: "conv_1" }));
  store.dispatch({ type: "session", session: "signed_in", me: { max_files_per_message: 3, max_file_bytes: 100 } as Me });
  store.dispatch({ type: "thread/loaded", id: "conv_1", conversation: { id: "conv_1" } as Conversation, page: { data: [question], next_cursor: null } });
  if (liveId) store.dispatch({ type: "turn/followed", id: "conv_1", turn_id: liveId });
  const queued: OutgoingMessage[] = [];
  const followed: string[] = [];
  const errors: unknown[] = [];
  const notes: string[] = [];
  const notices = { show: (text: string) => notes.push(text), report: (error: unknown) => errors.push(error) };
  const uploads = new Uploads({ store, notices });
  const branches = new Branches({
    store,
    tabs: new TabChannel(),
    uploads,
    notices,
    connection: { retry: (request) => request() },
    threads: { isInView: (id) => threadId(store.get()) === id, follow: (_, turnId) => followed.push(turnId), refresh: () => Promise.resolve() },
    outbox: { addQueued: (_, outgoing) => queued.push(outgoing) },
  });
  const thread = () => store.get().threads["conv_1"];
  return { store, branches, thread, queued, followed, errors, notes };
}

const accepts = (turnId: string) => Promise.resolve({ turn_id: turnId, conversation_id: "conv_1", events_url: "" });

beforeEach(() => {
  vi.resetAllMocks();
  vi.stubGlobal("navigator", { onLine: true });
});

describe("an edit", () => {
  test("names no files if none were changed, and otherwise exactly its files", () => {
    expect(attachmentIds(question, [file("a"), file("b")])).toEqual({});
    expect(attachmentIds(question, [file("b")])).toEqual({ attachment_ids: ["b"] });
    expect(attachmentIds(question, [])).toEqual({ attachment_ids: [] });
    expect(attachmentIds({ ...question, attachments: [] }, [])).toEqual({});
  });

  test("replaces its message at once, with its text and its files", async () => {
    const { branches, thread, followed } = opened();
    vi.mocked(routes.edit).mockReturnValue(accepts("t2"));
    branches.openEdit("conv_1", question);
    branches.changeText("conv_1", "t1", " Dogs? ");
    branches.removeFile("conv_1", "t1", "a");
    await branches.sendEdit("conv_1", "t1", "enqueue");
    expect(vi.mocked(routes.edit).mock.calls[0]?.slice(0, 3)).toEqual(["conv_1", "t1", { message: "Dogs?", if_busy: "enqueue", attachment_ids: ["b"] }]);
    expect(thread()?.messages).toMatchObject([{ turn_id: "t2", content: [{ text: "Dogs?" }], attachments: [{ file_id: "b" }] }]);
    expect(thread()?.edits).toEqual({});
    expect(followed).toEqual(["t2"]);
  });

  test("stays open when it is refused", async () => {
    const { branches, thread, errors } = opened();
    vi.mocked(routes.edit).mockRejectedValue(new TurnkeepError(404, "not_found", "There is no such file."));
    branches.openEdit("conv_1", question);
    branches.changeText("conv_1", "t1", "Dogs?");
    await branches.sendEdit("conv_1", "t1", "enqueue");
    expect(thread()?.edits["t1"]).toMatchObject({ text: "Dogs?", files: question.attachments, isSending: false });
    expect(errors).toHaveLength(1);
  });

  test("is queued while an answer is written", async () => {
    const { branches, thread, queued, followed } = opened("t9");
    vi.mocked(routes.edit).mockReturnValue(accepts("t2"));
    branches.openEdit("conv_1", question);
    await branches.sendEdit("conv_1", "t1", "interrupt");
    expect(queued).toMatchObject([{ branch: "edit", turn_id: "t2", status: "queued", text: "Cats?" }]);
    expect(thread()?.messages).toEqual([question]);
    expect(followed).toEqual([]);
  });

  test("that is closed while the server accepts it is cancelled there", async () => {
    const { branches, thread, followed } = opened();
    let respond: (accepted: Awaited<ReturnType<typeof accepts>>) => void = () => undefined;
    vi.mocked(routes.edit).mockReturnValue(new Promise((resolve) => (respond = resolve)));
    branches.openEdit("conv_1", question);
    const sending = branches.sendEdit("conv_1", "t1", "enqueue");
    expect(thread()?.edits["t1"]?.isSending).toBe(true);
    branches.closeEdit("conv_1", "t1");
    respond(await accepts("t2"));
    await sending;
    expect(routes.cancel).toHaveBeenCalledWith("t2");
    expect(thread()).toMatchObject({ messages: [question], edits: {} });
    expect(followed).toEqual([]);
  });

  test("that is closed and opened again is another edit", async () => {
    const { branches, thread, followed } = opened();
    let respond: (accepted: Awaited<ReturnType<typeof accepts>>) => void = () => undefined;
    vi.mocked(routes.edit).mockReturnValueOnce(new Promise((resolve) => (respond = resolve)));
    branches.openEdit("conv_1", question);
    const sending = branches.sendEdit("conv_1", "t1", "enqueue");
    branches.closeEdit("conv_1", "t1");
    branches.openEdit("conv_1", question);
    branches.changeText("conv_1", "t1", "Dogs?");
    respond(await accepts("t2"));
    await sending;
    expect(routes.cancel).toHaveBeenCalledWith("t2");
    expect(thread()).toMatchObject({ messages: [question], edits: { t1: { text: "Dogs?", isSending: false } } });
    expect(followed).toEqual([]);
  });

  test("can be sent while the request of a closed one is running", async () => {
    const { branches, thread, followed } = opened();
    vi.mocked(routes.edit).mockReturnValueOnce(new Promise(() => undefined)).mockReturnValueOnce(accepts("t3"));
    branches.openEdit("conv_1", question);
    void branches.sendEdit("conv_1", "t1", "enqueue");
    branches.closeEdit("conv_1", "t1");
    branches.openEdit("conv_1", question);
    branches.changeText("conv_1", "t1", "Dogs?");
    await branches.sendEdit("conv_1", "t1", "enqueue");
    expect(thread()).toMatchObject({ messages: [{ turn_id: "t3", content: [{ text: "Dogs?" }] }], edits: {} });
    expect(followed).toEqual(["t3"]);
  });

  test("takes no files while it is being sent, and is sent once", () => {
    const { branches, store } = opened();
    vi.mocked(routes.edit).mockReturnValue(new Promise(() => undefined));
    vi.mocked(routes.upload).mockReturnValue(new Promise(() => undefined));
    branches.openEdit("conv_1", question);
    void branches.sendEdit("conv_1", "t1", "enqueue");
    void branches.sendEdit("conv_1", "t1", "enqueue");
    branches.attachFiles("conv_1", "t1", [new File(["c"], "c.txt")]);
    expect(store.get().uploads["edit:t1"] ?? []).toEqual([]);
    expect(routes.edit).toHaveBeenCalledTimes(1);
    expect(store.get().threads["conv_1"]?.edits["t1"]?.isSending).toBe(true);
  });

  test("counts its kept files against the limit", () => {
    const { branches, store, notes } = opened();
    vi.mocked(routes.upload).mockReturnValue(new Promise(() => undefined));
    branches.openEdit("conv_1", question);
    branches.attachFiles("conv_1", "t1", [new File([], "c.txt"), new File(["d"], "d.txt")]);
    expect(notes).toContain("A message can have up to 3 files. The others were not added.");
    expect(store.get().uploads["conv_1"]).toBeUndefined();
  });
});

describe("a regenerated answer", () => {
  test("is requested once, however often the button is pressed", async () => {
    const { branches } = opened();
    vi.mocked(routes.regenerate).mockReturnValue(accepts("t2"));
    await Promise.all([branches.regenerate("conv_1", "t1", "enqueue"), branches.regenerate("conv_1", "t1", "enqueue")]);
    expect(routes.regenerate).toHaveBeenCalledTimes(1);
  });

  test("does not take the stream from another thread that is in view meanwhile", async () => {
    const { store, branches, thread, followed } = opened();
    vi.mocked(routes.regenerate).mockReturnValue(accepts("t2"));
    const asking = branches.regenerate("conv_1", "t1", "enqueue");
    store.dispatch({ type: "route", route: { page: "chat", conversationId: "conv_2" } });
    await asking;
    expect(thread()?.live?.id).toBe("t2");
    expect(followed).toEqual([]);
    expect(routes.cancel).not.toHaveBeenCalled();
  });

  test("is not requested again after the user has left its conversation", async () => {
    vi.useFakeTimers();
    const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    vi.mocked(routes.regenerate).mockRejectedValue(new TurnkeepError(0, "unreachable", "No answer."));
    const asking = services.branches.regenerate("conv_1", "t1", "enqueue");
    await vi.advanceTimersByTimeAsync(2_000);
    expect(routes.regenerate).toHaveBeenCalledTimes(2);
    services.store.dispatch({ type: "route", route: { page: "chat", conversationId: "conv_2" } });
    await vi.advanceTimersByTimeAsync(10_000);
    await asking;
    expect(routes.regenerate).toHaveBeenCalledTimes(2);
    vi.useRealTimers();
  });
});
