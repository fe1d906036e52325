/** Messages on their way: what is sent, repeated, taken back, and kept for a reload. */
import { beforeEach, describe, expect, test, vi } from "vitest";

import { createServices, type Services } from "../src/effects/services";
import { signIn } from "../src/effects/session";
import { newState } from "../src/state/state";
import { createStore } from "../src/state/store";
import type { OutgoingMessage } from "../src/state/thread";
import { ApiError } from "../src/wire/client";
import * as routes from "../src/wire/routes";
import type { Me } from "../src/wire/types";

vi.mock("../src/wire/routes");

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

test("an edit that waits is kept for other tabs as what another page sent", () => {
  const stored = storage("localStorage");
  const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
  const outgoing: OutgoingMessage = { key: "own", text: "Dogs?", attachments: [], agent_id: null, model: null, if_busy: "enqueue", branch: "edit", status: "queued", turn_id: "t2", error: null, created_at: 1 };
  services.outbox.addQueued("conv_1", outgoing);
  expect(JSON.parse(stored.get("turnkeep:queued:conv_1") ?? "")).toMatchObject([{ key: "t2", branch: "edit", turn_id: "t2" }]);
  expect(services.store.get().threads["conv_1"]?.outbox).toEqual([outgoing]);
  vi.unstubAllGlobals();
});

describe("a message on its way", () => {
  const outgoingOf = (services: Services) => services.store.get().threads["conv_1"]?.outbox[0];

  test("that is taken back before anybody answered is not sent again", async () => {
    vi.useFakeTimers();
    const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    vi.mocked(routes.ask).mockRejectedValue(new ApiError(0, "unreachable", "No answer."));
    const asking = services.outbox.send({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    await vi.advanceTimersByTimeAsync(100);
    services.outbox.remove("conv_1", outgoingOf(services)?.key ?? "");
    await vi.advanceTimersByTimeAsync(10_000);
    await asking;
    expect(routes.ask).toHaveBeenCalledTimes(1);
    vi.useRealTimers();
  });

  test("that is taken back while the server takes it is stopped there", async () => {
    const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    let answer: (accepted: Awaited<ReturnType<typeof accepts>>) => void = () => undefined;
    vi.mocked(routes.ask).mockReturnValue(new Promise((resolve) => (answer = resolve)));
    const asking = services.outbox.send({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    services.outbox.remove("conv_1", outgoingOf(services)?.key ?? "");
    answer(await accepts("t2"));
    await asking;
    expect(routes.cancel).toHaveBeenCalledWith("t2");
  });

  test.each([
    { ...somebody, user_id: "user_2" },
    { ...somebody, workspace_id: "ws_2" },
  ])("is forgotten where somebody else signs in", async (other) => {
    const stored = storage();
    const before = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    before.store.dispatch({ type: "session", session: "signed_in", me: somebody });
    vi.mocked(routes.ask).mockReturnValue(new Promise(() => undefined));
    void before.outbox.send({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    expect(stored.size).toBe(1);

    const after = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    signsIn(other);
    await signIn(after);
    expect(routes.ask).toHaveBeenCalledTimes(1);
    expect(outgoingOf(after)).toBeUndefined();
    expect(stored.size).toBe(0);
    vi.unstubAllGlobals();
  });

  test("is sent again after a reload, under the same key, until somebody has taken it", async () => {
    const stored = storage();
    const before = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    before.store.dispatch({ type: "session", session: "signed_in", me: somebody });
    vi.mocked(routes.ask).mockReturnValue(new Promise(() => undefined));
    void before.outbox.send({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });

    const after = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    signsIn(somebody);
    vi.mocked(routes.ask).mockRejectedValue(new ApiError(422, "invalid_request", "No."));
    await signIn(after);
    await vi.waitFor(() => expect(outgoingOf(after)).toMatchObject({ text: "Hello", status: "refused" }));
    const [first, second] = vi.mocked(routes.ask).mock.calls;
    expect(second).toEqual(first);
    after.outbox.remove("conv_1", outgoingOf(after)?.key ?? "");
    expect(stored.size).toBe(0);
    vi.unstubAllGlobals();
  });
});

describe("a second message in a new conversation", () => {
  type Answer = Awaited<ReturnType<typeof accepts>>;

  /** A page that has sent two messages, and the responses to its requests, to be given one by one. */
  function asked() {
    const answers: { resolve: (answer: Answer) => void; reject: (error: unknown) => void }[] = [];
    vi.mocked(routes.ask).mockImplementation(() => new Promise((resolve, reject) => answers.push({ resolve, reject })));
    vi.mocked(routes.conversation).mockReturnValue(new Promise(() => undefined));
    // It looks elsewhere meanwhile, so that nothing is followed.
    const services = createServices(createStore(newState({ page: "chat", conversationId: null })));
    const sending = ["one", "two"].map((text) => services.outbox.send({ text, attachments: [], agentId: null, model: null, ifBusy: "reject" }));
    services.store.dispatch({ type: "route", route: { page: "chat", conversationId: "conv_9" } });
    const bodies = () => vi.mocked(routes.ask).mock.calls.map(([body]) => body);
    const outbox = (id: string) => services.store.get().threads[id]?.outbox.map((one) => `${one.text} ${one.status}`);
    return { services, answers, sending, bodies, outbox };
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
    const { services, answers, sending, outbox } = asked();
    answers[0]?.resolve(await accepts("t1"));
    await sending[0];
    answers[1]?.reject(new ApiError(422, "invalid_request", "No."));
    await sending[1];
    expect(outbox("conv_1")).toEqual(["two refused"]);
    expect(services.store.get().threads["new"]).toBeUndefined();
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
    const { services, answers, sending, bodies } = asked();
    const keys = services.store.get().threads["new"]?.outbox.map((one) => one.key) ?? [];
    services.outbox.remove("new", keys[0] ?? "");
    answers[0]?.resolve(await accepts("t1"));
    await sending[0];
    expect(routes.cancel).toHaveBeenCalledWith("t1");
    expect(bodies()[1]).not.toHaveProperty("conversation_id");

    const other = asked();
    for (const { key } of other.services.store.get().threads["new"]?.outbox ?? []) other.services.outbox.remove("new", key);
    other.answers[0]?.resolve(await accepts("t3"));
    await Promise.all(other.sending);
    expect(other.answers).toHaveLength(1);
  });

  test("is sent again after a reload to where it was sent before, in the same words", async () => {
    storage();
    const { services, answers, sending, bodies } = asked();
    services.store.dispatch({ type: "session", session: "signed_in", me: somebody });
    answers[0]?.resolve(await accepts("t1"));
    await sending[0];
    expect(bodies()).toHaveLength(2);

    signsIn(somebody);
    await signIn(createServices(createStore(newState({ page: "chat", conversationId: "conv_9" }))));
    const [, second, again] = vi.mocked(routes.ask).mock.calls;
    expect(again).toEqual(second);
    expect(again?.[0].conversation_id).toBe("conv_1");
    vi.unstubAllGlobals();
  });
});
