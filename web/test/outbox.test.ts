/** Outgoing messages: sent, repeated, removed, and stored for a reload. */
import { afterEach, beforeEach, describe, expect, test, vi } from "vitest";

import { type Me, type OutgoingMessage, type Turn, TurnkeepError } from "@turnkeep/client";
import { createServices, type Services } from "../src/effects/services";
import { signIn } from "../src/effects/session";
import { newState } from "../src/state/state";
import { createStore } from "../src/state/store";
import * as routes from "../src/wire/routes";

vi.mock("../src/wire/routes");

const accepts = (turnId: string) => Promise.resolve({ turn_id: turnId, conversation_id: "conv_1", events_url: "" });

const user = { user_id: "user_1", workspace_id: "ws_1" } as Me;

function storage(name: "localStorage" | "sessionStorage" = "sessionStorage") {
  const stored = new Map<string, string>();
  vi.stubGlobal(name, {
    getItem: (item: string) => stored.get(item) ?? null,
    setItem: (item: string, value: string) => stored.set(item, value),
    removeItem: (item: string) => stored.delete(item),
  });
  return stored;
}

function signInAs(me: Me) {
  vi.mocked(routes.me).mockResolvedValue(me);
  vi.mocked(routes.openapi).mockResolvedValue({ paths: {} });
  for (const route of [routes.models, routes.agents, routes.conversations, routes.conversation, routes.messages]) vi.mocked(route as () => Promise<never>).mockReturnValue(new Promise(() => undefined));
}

beforeEach(() => {
  vi.resetAllMocks();
  vi.stubGlobal("navigator", { onLine: true });
});

test("a queued edit is stored for other tabs as a message of another page", () => {
  const stored = storage("localStorage");
  const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
  const outgoing: OutgoingMessage = { key: "own", text: "Dogs?", attachments: [], agent_id: null, model: null, if_busy: "enqueue", branch: "edit", status: "queued", turn_id: "t2", error: null, created_at: 1 };
  services.outbox.addQueued("conv_1", outgoing);
  expect(JSON.parse(stored.get("turnkeep:queued:conv_1") ?? "")).toMatchObject([{ key: "t2", branch: "edit", turn_id: "t2" }]);
  expect(services.store.get().threads["conv_1"]?.outbox).toEqual([outgoing]);
  vi.unstubAllGlobals();
});

describe("an outgoing message", () => {
  const outgoingOf = (services: Services) => services.store.get().threads["conv_1"]?.outbox[0];

  test("that is removed before the server responses is not sent again", async () => {
    vi.useFakeTimers();
    const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    vi.mocked(routes.ask).mockRejectedValue(new TurnkeepError(0, "unreachable", "No answer."));
    const asking = services.outbox.send({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    await vi.advanceTimersByTimeAsync(100);
    services.outbox.takeBack("conv_1", outgoingOf(services)?.key ?? "");
    await vi.advanceTimersByTimeAsync(10_000);
    await asking;
    expect(routes.ask).toHaveBeenCalledTimes(1);
    vi.useRealTimers();
  });

  test("that is removed while the server accepts it is cancelled there", async () => {
    const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    let answer: (accepted: Awaited<ReturnType<typeof accepts>>) => void = () => undefined;
    vi.mocked(routes.ask).mockReturnValue(new Promise((resolve) => (answer = resolve)));
    const asking = services.outbox.send({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    services.outbox.takeBack("conv_1", outgoingOf(services)?.key ?? "");
    answer(await accepts("t2"));
    await asking;
    expect(routes.cancel).toHaveBeenCalledWith("t2");
  });

  test.each([
    { ...user, user_id: "user_2" },
    { ...user, workspace_id: "ws_2" },
  ])("is deleted when another user signs in", async (other) => {
    const stored = storage();
    const before = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    before.store.dispatch({ type: "session", session: "signed_in", me: user });
    vi.mocked(routes.ask).mockReturnValue(new Promise(() => undefined));
    void before.outbox.send({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    expect(stored.size).toBe(1);

    const after = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    signInAs(other);
    await signIn(after);
    expect(routes.ask).toHaveBeenCalledTimes(1);
    expect(outgoingOf(after)).toBeUndefined();
    expect(stored.size).toBe(0);
    vi.unstubAllGlobals();
  });

  test("that is taken back is in the composer again, before what was written since", async () => {
    const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    vi.mocked(routes.ask).mockRejectedValue(new TurnkeepError(429, "quota_exceeded", "No more."));
    const file = { type: "file", file_id: "file_1", name: "a.txt", mime_type: "text/plain", size: 1 } as const;
    await services.outbox.send({ text: "Hello", attachments: [file], agentId: null, model: null, ifBusy: "enqueue" });
    services.drafts.set("conv_1", "And more");
    services.outbox.takeBack("conv_1", outgoingOf(services)?.key ?? "");
    expect(outgoingOf(services)).toBeUndefined();
    expect(services.drafts.get("conv_1")).toBe("Hello\n\nAnd more");
    expect(services.store.get().uploads["conv_1"]).toMatchObject([{ name: "a.txt", stored: file }]);
  });

  test.each([
    [null, "Hello"],
    [5, ""],
  ])("that was queued is in the composer again if its turn had not started", async (startedAt, draft) => {
    const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    const outgoing: OutgoingMessage = { key: "own", text: "Hello", attachments: [], agent_id: null, model: null, if_busy: "enqueue", status: "queued", turn_id: "t2", error: null, created_at: 1 };
    services.outbox.addQueued("conv_1", outgoing);
    vi.mocked(routes.cancel).mockResolvedValue({ id: "t2", started_at: startedAt } as Turn);
    vi.mocked(routes.conversation).mockReturnValue(new Promise(() => undefined));
    vi.mocked(routes.messages).mockReturnValue(new Promise(() => undefined));
    void services.outbox.cancelQueued("conv_1", "t2", "own");
    await vi.waitFor(() => expect(outgoingOf(services)).toBeUndefined());
    expect(services.drafts.get("conv_1")).toBe(draft);
  });

  test("that was queued stays if it could not be cancelled", async () => {
    const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    const outgoing: OutgoingMessage = { key: "own", text: "Hello", attachments: [], agent_id: null, model: null, if_busy: "enqueue", status: "queued", turn_id: "t2", error: null, created_at: 1 };
    services.outbox.addQueued("conv_1", outgoing);
    vi.mocked(routes.cancel).mockRejectedValue(new TurnkeepError(503, "unavailable", "Later."));
    await services.outbox.cancelQueued("conv_1", "t2", "own");
    expect(outgoingOf(services)).toEqual(outgoing);
  });

  test("that was refused stays in its conversation in every tab, until it is taken back", async () => {
    const stored = storage("localStorage");
    const [first, second] = [1, 2].map(() => createServices(createStore(newState({ page: "chat", conversationId: "conv_1" }))));
    if (!first || !second) throw new Error("There are two.");
    signInAs(user);
    await signIn(first);
    vi.mocked(routes.ask).mockRejectedValue(new TurnkeepError(429, "quota_exceeded", "No more."));
    await first.outbox.send({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    await signIn(second);
    expect(outgoingOf(second)).toMatchObject({ text: "Hello", status: "refused", error: { message: "No more." } });
    await second.outbox.send({ text: "Too", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    second.outbox.takeBack("conv_1", outgoingOf(second)?.key ?? "");
    expect(JSON.parse(stored.get("turnkeep:refused") ?? "").unsent).toMatchObject([{ id: "conv_1", outgoing: { text: "Too" } }]);
    vi.unstubAllGlobals();
  });

  test("that met the end of the session is sent after the next sign-in", async () => {
    storage();
    const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    signInAs(user);
    await signIn(services);
    vi.mocked(routes.ask).mockRejectedValue(new TurnkeepError(401, "unauthorized", "Who are you?"));
    await services.outbox.send({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
    expect(services.store.get().session).toBe("ended");
    vi.mocked(routes.ask).mockReturnValue(accepts("t2"));
    await signIn(services);
    await vi.waitFor(() => expect(outgoingOf(services)).toBeUndefined());
    expect(routes.ask).toHaveBeenCalledTimes(2);
    vi.unstubAllGlobals();
  });

  test("is sent again after a reload, under the same key, until the server has accepted it", async () => {
    const stored = storage();
    const before = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    before.store.dispatch({ type: "session", session: "signed_in", me: user });
    vi.mocked(routes.ask).mockReturnValue(new Promise(() => undefined));
    void before.outbox.send({ text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" });

    const after = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    signInAs(user);
    vi.mocked(routes.ask).mockRejectedValue(new TurnkeepError(422, "invalid_request", "No."));
    await signIn(after);
    await vi.waitFor(() => expect(outgoingOf(after)).toMatchObject({ text: "Hello", status: "refused" }));
    const [first, second] = vi.mocked(routes.ask).mock.calls;
    expect(second).toEqual(first);
    after.outbox.takeBack("conv_1", outgoingOf(after)?.key ?? "");
    expect(stored.size).toBe(0);
    vi.unstubAllGlobals();
  });
});

describe("instructions and temperature of a new conversation", () => {
  const brief = { instructions: "Be brief.", temperature: 0.3 };
  const newPage = () => {
    vi.mocked(routes.conversation).mockReturnValue(new Promise(() => undefined));
    const services = createServices(createStore(newState({ page: "chat", conversationId: null })));
    services.store.dispatch({ type: "session", session: "signed_in", me: user });
    const send = (text: string) => services.outbox.send({ text, attachments: [], agentId: null, model: null, ifBusy: "reject" });
    // Another conversation comes into view, so no turn is followed.
    const leave = () => services.store.dispatch({ type: "route", route: { page: "chat", conversationId: "conv_9" } });
    return { services, send, leave };
  };
  const bodies = () => vi.mocked(routes.ask).mock.calls.map(([body]) => body);
  const refuse = () => vi.mocked(routes.ask).mockRejectedValueOnce(new TurnkeepError(422, "unsupported_option", "No."));

  beforeEach(() => {
    storage();
    storage("localStorage");
  });
  afterEach(() => vi.unstubAllGlobals());

  test("are kept in the browser until its first message has created it", async () => {
    newPage().services.drafts.setBehaviour(brief);
    const { services, send, leave } = newPage();
    expect(services.drafts.behaviour).toEqual(brief);
    vi.mocked(routes.ask).mockImplementation(() => accepts("t1"));
    const sending = send("Hello");
    leave();
    await sending;
    expect(bodies()).toMatchObject([brief]);
    expect(services.drafts.behaviour).toBeNull();
    expect(newPage().services.drafts.behaviour).toBeNull();
  });

  test("are not sent with the messages that follow", async () => {
    const { services, send, leave } = newPage();
    services.drafts.setBehaviour(brief);
    vi.mocked(routes.ask).mockImplementation(() => accepts("t1"));
    const sending = [send("one"), send("two")];
    leave();
    await Promise.all(sending);
    expect(bodies()).toMatchObject([brief, { conversation_id: "conv_1" }]);
    expect(bodies()[1]).not.toHaveProperty("instructions");
  });

  test("are sent with the second message if the first is refused", async () => {
    const { services, send, leave } = newPage();
    services.drafts.setBehaviour(brief);
    refuse();
    await send("one");
    expect(services.drafts.behaviour).toEqual(brief);
    vi.mocked(routes.ask).mockImplementation(() => accepts("t1"));
    const sending = send("two");
    leave();
    await sending;
    expect(bodies()).toMatchObject([brief, brief]);
  });

  test("may be changed before a refused message is sent again", async () => {
    const { services, send, leave } = newPage();
    services.drafts.setBehaviour(brief);
    refuse();
    await send("one");
    services.drafts.setBehaviour({ ...brief, temperature: null });
    vi.mocked(routes.ask).mockImplementation(() => accepts("t1"));
    const again = services.outbox.sendAgain("new", services.store.get().threads["new"]?.outbox[0]?.key ?? "");
    leave();
    await again;
    expect(bodies()[1]).toMatchObject({ instructions: "Be brief.", temperature: null });
  });

  test("are the same in a request that is sent again after a reload", async () => {
    const { services, send } = newPage();
    services.drafts.setBehaviour(brief);
    vi.mocked(routes.ask).mockReturnValue(new Promise(() => undefined));
    void send("Hello");
    // Another tab has chosen something else meanwhile.
    services.drafts.setBehaviour({ ...brief, instructions: "Be long." });
    signInAs(user);
    await signIn(createServices(createStore(newState({ page: "chat", conversationId: "conv_9" }))));
    const [first, again] = vi.mocked(routes.ask).mock.calls;
    expect(first?.[0]).toMatchObject(brief);
    expect(again).toEqual(first);
  });

  test("of which nothing is left are none", () => {
    const { services } = newPage();
    services.drafts.setBehaviour({ instructions: null, temperature: null });
    expect(services.drafts.behaviour).toBeNull();
  });
});

describe("a second message in a new conversation", () => {
  type Accepted = Awaited<ReturnType<typeof accepts>>;

  /** A page that has sent two messages, and the responses to its requests, to be given one by one. */
  function sendTwo() {
    const responses: { resolve: (accepted: Accepted) => void; reject: (error: unknown) => void }[] = [];
    vi.mocked(routes.ask).mockImplementation(() => new Promise((resolve, reject) => responses.push({ resolve, reject })));
    vi.mocked(routes.conversation).mockReturnValue(new Promise(() => undefined));
    // Another conversation is in view, so no turn is followed.
    const services = createServices(createStore(newState({ page: "chat", conversationId: null })));
    const sending = ["one", "two"].map((text) => services.outbox.send({ text, attachments: [], agentId: null, model: null, ifBusy: "reject" }));
    services.store.dispatch({ type: "route", route: { page: "chat", conversationId: "conv_9" } });
    const bodies = () => vi.mocked(routes.ask).mock.calls.map(([body]) => body);
    const outbox = (id: string) => services.store.get().threads[id]?.outbox.map((one) => `${one.text} ${one.status}`);
    return { services, responses, sending, bodies, outbox };
  }

  test("waits for the first and is sent to the same conversation", async () => {
    const { responses, sending, bodies, outbox } = sendTwo();
    expect(bodies()).toMatchObject([{ message: "one", if_busy: "reject" }]);
    responses[0]?.resolve(await accepts("t1"));
    await sending[0];
    expect(bodies()[1]).toMatchObject({ message: "two", conversation_id: "conv_1", if_busy: "enqueue" });
    responses[1]?.resolve(await accepts("t2"));
    await sending[1];
    expect(outbox("conv_1")).toEqual(["two queued"]);
    expect(routes.cancel).not.toHaveBeenCalled();
  });

  test("shows its refusal in the conversation that the first one created", async () => {
    const { services, responses, sending, outbox } = sendTwo();
    responses[0]?.resolve(await accepts("t1"));
    await sending[0];
    responses[1]?.reject(new TurnkeepError(422, "invalid_request", "No."));
    await sending[1];
    expect(outbox("conv_1")).toEqual(["two refused"]);
    expect(services.store.get().threads["new"]).toBeUndefined();
  });

  test("creates the conversation if the first is refused", async () => {
    const { responses, sending, bodies, outbox } = sendTwo();
    responses[0]?.reject(new TurnkeepError(422, "invalid_request", "No."));
    await sending[0];
    expect(bodies()[1]).not.toHaveProperty("conversation_id");
    responses[1]?.resolve(await accepts("t2"));
    await sending[1];
    expect(outbox("conv_1")).toEqual(["one refused"]);
  });

  test("creates the conversation if the first is removed, and is not sent if it is removed too", async () => {
    const { services, responses, sending, bodies } = sendTwo();
    const keys = services.store.get().threads["new"]?.outbox.map((one) => one.key) ?? [];
    services.outbox.takeBack("new", keys[0] ?? "");
    responses[0]?.resolve(await accepts("t1"));
    await sending[0];
    expect(routes.cancel).toHaveBeenCalledWith("t1");
    expect(bodies()[1]).not.toHaveProperty("conversation_id");

    const other = sendTwo();
    for (const { key } of other.services.store.get().threads["new"]?.outbox ?? []) other.services.outbox.takeBack("new", key);
    other.responses[0]?.resolve(await accepts("t3"));
    await Promise.all(other.sending);
    expect(other.responses).toHaveLength(1);
  });

  test("is sent again after a reload with the same body", async () => {
    storage();
    const { services, responses, sending, bodies } = sendTwo();
    services.store.dispatch({ type: "session", session: "signed_in", me: user });
    responses[0]?.resolve(await accepts("t1"));
    await sending[0];
    expect(bodies()).toHaveLength(2);

    signInAs(user);
    await signIn(createServices(createStore(newState({ page: "chat", conversationId: "conv_9" }))));
    const [, second, again] = vi.mocked(routes.ask).mock.calls;
    expect(again).toEqual(second);
    expect(again?.[0].conversation_id).toBe("conv_1");
    vi.unstubAllGlobals();
  });
});
