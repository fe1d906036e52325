/** Turns that wait, as the page handles them: its decisions, the list, and words that steer a turn. */
import { beforeEach, describe, expect, test, vi } from "vitest";

import { type Conversation, type Me, type Message, openCalls, type StreamEvent, type Turn, TurnkeepError, waitBadge } from "@turnkeep/client";
import { createServices } from "../src/effects/services";
import { newConversationList, reduceConversationList } from "../src/state/conversationList";
import { newState } from "../src/state/state";
import { createStore } from "../src/state/store";
import * as routes from "../src/wire/routes";

vi.mock("../src/wire/routes");
beforeEach(() => {
  vi.resetAllMocks();
  vi.stubGlobal("navigator", { onLine: true });
});

const TURN = "turn_1";
const CALL = "call_1";
const wait: StreamEvent = { type: "approval", calls: [CALL, "call_2"].map((id) => ({ id, name: "pay", args: { amount: 5 } })), expires_at: 1 };

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

describe("decisions", () => {
  const services = () => {
    const made = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
    made.store.dispatch({ type: "thread/loaded", id: "conv_1", conversation, page: { data: [message("user")], next_cursor: null } });
    made.store.dispatch({ type: "turn/followed", id: "conv_1", turn_id: TURN });
    made.store.dispatch({ type: "turn/events", id: "conv_1", turn_id: TURN, events: [wait], now: 1 });
    return made;
  };
  const shown = (made: ReturnType<typeof services>) => Object.values(made.store.get().threads["conv_1"]?.decisions ?? {});

  test("are shown while they are sent, and when they hold", async () => {
    const made = services();
    vi.mocked(routes.decide).mockResolvedValue({} as Turn);
    const deciding = made.approvals.decide("conv_1", CALL, { decision: "deny", reason: "No." });
    expect(shown(made)).toMatchObject([{ status: "sending", decision: "deny", reason: "No." }]);
    expect(await deciding).toBe(true);
    expect(shown(made)).toMatchObject([{ status: "decided", decision: "deny" }]);
    expect(routes.decide).toHaveBeenCalledWith(TURN, [{ call_id: CALL, decision: "deny", reason: "No." }]);
  });

  test("that come too late show the one that holds", async () => {
    const made = services();
    vi.mocked(routes.decide).mockRejectedValue(new TurnkeepError(409, "already_decided", "…", { decision: "allow" }));
    vi.mocked(routes.turn).mockResolvedValue({ waiting_for: null } as unknown as Turn);
    expect(await made.approvals.decide("conv_1", CALL, { decision: "deny" })).toBe(false);
    expect(shown(made)).toEqual([{ status: "decided", decision: "allow", isOthers: true }]);
  });

  test("that are refused leave the call open, with the reason", async () => {
    const made = services();
    vi.mocked(routes.decide).mockRejectedValue(new TurnkeepError(422, "invalid_request", "amount must be a number."));
    vi.mocked(routes.turn).mockResolvedValue({ waiting_for: null } as unknown as Turn);
    await made.approvals.decide("conv_1", CALL, { decision: "allow", args: {} });
    expect(shown(made)).toEqual([{ status: "failed", decision: null, error: "amount must be a number." }]);
    const thread = made.store.get().threads["conv_1"];
    expect(thread?.live?.wait && openCalls(thread, thread.live.wait)).toHaveLength(2);
  });
});

test("the list shows that the turn of a conversation waits, and that it goes on", () => {
  const list = { ...newConversationList, items: [conversation] };
  const action = { type: "conversations/waiting", id: "conv_1", turn_id: TURN } as const;
  expect(reduceConversationList(list, { ...action, waiting_for: "approval" })).toBe(list);
  const on = reduceConversationList(list, { ...action, waiting_for: null });
  expect(on.items[0]?.running_turn).toEqual({ id: TURN, events_url: `/v1/turns/${TURN}/events` });
  expect(waitBadge(on.items[0] ?? conversation, undefined, me)).toBeNull();
  expect(reduceConversationList(list, { ...action, turn_id: "turn_other", waiting_for: null })).toBe(list);
});

test("words that steer are sent to the turn, and queued if they are sent again after a refusal", async () => {
  const made = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
  vi.mocked(routes.steer).mockRejectedValueOnce(new TurnkeepError(404, "not_found", "No such turn."));
  await made.outbox.send({ text: "Be brief.", attachments: [], agentId: null, model: null, ifBusy: "enqueue", steers: TURN });
  const [refused] = made.store.get().threads["conv_1"]?.outbox ?? [];
  expect(refused).toMatchObject({ status: "refused", text: "Be brief." });
  vi.mocked(routes.ask).mockResolvedValue({ turn_id: "turn_2", conversation_id: "conv_1", events_url: "" });
  vi.mocked(routes.conversation).mockReturnValue(new Promise(() => undefined));
  vi.stubGlobal("setTimeout", () => 0);
  await made.outbox.sendAgain("conv_1", refused?.key ?? "");
  expect(routes.ask).toHaveBeenCalledWith(expect.objectContaining({ message: "Be brief.", if_busy: "enqueue" }), refused?.key);
  vi.unstubAllGlobals();
});
