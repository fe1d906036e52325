/** One conversation as the page holds it: its messages, the turn that is followed, outgoing messages, and open edits. */
import type { StreamEvent } from "../stream/events.js";
import type { Conversation, FileRef, IfBusy, Message, ListPage, WaitingFor } from "../wire/types.js";
import { type MessageEdit, type Edits, withEdit, withoutEdit } from "./edits.js";
import { messageKey, type ThreadMessage, versionsOf, withSteers } from "./message.js";
import { withQueue } from "./queue.js";
import { isOpen, isSettled, newTurn, reduceTurn, type SteeredWords, type TurnDisplay } from "./turn.js";
import { type CallDecision, type WaitFacts, withDecision, withWaitFacts } from "./waits.js";

export interface Failure {
  readonly code: string;
  readonly message: string;
}

/** What the model is told in every turn of a conversation, and how freely it chooses its words; null for neither. */
export interface Behaviour {
  readonly instructions: string | null;
  readonly temperature: number | null;
}

/** A message that is not in the transcript yet: this page sends it, or its turn is queued (also by another client). */
export interface OutgoingMessage {
  readonly key: string;
  readonly text: string;
  readonly attachments: readonly FileRef[];
  readonly agent_id: string | null;
  readonly model: string | null;
  /** Set if the message may create its conversation: what that will have. */
  readonly behaviour?: Behaviour;
  readonly if_busy: IfBusy;
  /** Set if the message starts a branch: the edit of a message, or an answer that is regenerated. */
  readonly branch?: "edit" | "regenerate";
  /** Set if the message steers a turn: the id of that turn. */
  readonly steers?: string;
  /** The id of the message, once the server has told it. */
  readonly message_id?: string;
  readonly status: "sending" | "queued" | "refused";
  readonly turn_id: string | null;
  readonly error: Failure | null;
  readonly created_at: number;
}

export interface Thread {
  readonly id: string;
  readonly status: "loading" | "ready" | "missing" | "failed";
  readonly error: string | null;
  readonly conversation: Conversation | null;
  /** Oldest first. */
  readonly messages: readonly ThreadMessage[];
  /** The cursor for earlier messages; null if there are none, undefined if that is not known yet. */
  readonly older: string | null | undefined;
  readonly isLoadingOlder: boolean;
  readonly live: TurnDisplay | null;
  readonly outbox: readonly OutgoingMessage[];
  /** Messages that are being edited, by turn id. */
  readonly edits: Edits;
  /** What was decided about calls, by `decisionKey`. */
  readonly decisions: Readonly<Record<string, CallDecision>>;
  /** What is known of the wait of the live turn beside its events. */
  readonly waitFacts: WaitFacts | null;
  /** Where words that steered a turn belong in its answer, by turn id. */
  readonly steered: Readonly<Record<string, readonly SteeredWords[]>>;
}

export type ThreadAction =
  | { type: "thread/opened"; id: string }
  | { type: "thread/loaded"; id: string; conversation: Conversation; page: ListPage<Message>; known?: readonly OutgoingMessage[] }
  | { type: "thread/refreshed"; id: string; conversation: Conversation; page: ListPage<Message>; known?: readonly OutgoingMessage[] }
  | { type: "thread/failed"; id: string; isMissing: boolean; error: string }
  | { type: "thread/loading-older"; id: string }
  | { type: "thread/older"; id: string; page: ListPage<Message> }
  | { type: "thread/older-failed"; id: string }
  | { type: "thread/changed"; id: string; conversation: Conversation }
  | { type: "outbox/added"; id: string; outgoing: OutgoingMessage }
  | { type: "outbox/accepted"; id: string; key: string; turn_id: string; message_id?: string }
  | { type: "outbox/refused"; id: string; key: string; error: Failure }
  | { type: "outbox/removed"; id: string; key: string }
  | { type: "branch/started"; id: string; turn_id: string; new_turn_id: string; edited: Pick<MessageEdit, "text" | "files"> | null; now?: number }
  | { type: "edit/changed"; id: string; turn_id: string; changes: Partial<MessageEdit> }
  | { type: "edit/closed"; id: string; turn_id: string }
  | { type: "wait/read"; id: string; turn_id: string; waiting_for: WaitingFor | null }
  | { type: "call/decided"; id: string; key: string; decision: CallDecision }
  | { type: "turn/steered"; id: string; turn_id: string; steered: readonly SteeredWords[] }
  | { type: "turn/followed"; id: string; turn_id: string }
  | { type: "turn/events"; id: string; turn_id: string; events: readonly StreamEvent[]; now: number; isReplay?: boolean };

export function newThread(id: string): Thread {
  return {
    id,
    status: "loading",
    error: null,
    conversation: null,
    messages: [],
    older: undefined,
    isLoadingOlder: false,
    live: null,
    outbox: [],
    edits: {},
    decisions: {},
    waitFacts: null,
    steered: {},
  };
}

export function reduceThread(thread: Thread, action: ThreadAction): Thread {
  switch (action.type) {
    case "thread/opened":
      return thread.status === "ready" ? thread : { ...thread, status: "loading", error: null };
    case "thread/loaded":
    case "thread/refreshed": {
      const loaded = withTail({ ...thread, status: "ready", error: null, conversation: action.conversation }, action.page);
      return withQueue(loaded, action.conversation, action.known ?? []);
    }
    case "thread/failed":
      if (thread.status === "ready" && !action.isMissing) return thread;
      return { ...thread, status: action.isMissing ? "missing" : "failed", error: action.error };
    case "thread/loading-older":
      return { ...thread, isLoadingOlder: true };
    case "thread/older-failed":
      return { ...thread, isLoadingOlder: false };
    case "thread/older": {
      // By id: the question of a turn may come with this page, and words that steered it are here already.
      const known = new Set(thread.messages.map((message) => message.id));
      const more = action.page.data.toReversed().filter((message) => !known.has(message.id));
      return { ...thread, messages: withSteers([...more, ...thread.messages]), older: action.page.next_cursor, isLoadingOlder: false };
    }
    case "thread/changed":
      return { ...thread, conversation: action.conversation };
    case "outbox/added": {
      const { key, turn_id: turnId } = action.outgoing;
      const others = thread.outbox.filter((one) => one.key !== key && (turnId === null || one.turn_id !== turnId));
      return { ...thread, status: "ready", outbox: [...others, action.outgoing] };
    }
    case "outbox/accepted":
      return withAccepted(thread, action.key, action.turn_id, action.message_id);
    case "outbox/refused":
      return withOutgoing(thread, action.key, { status: "refused", error: action.error });
    case "outbox/removed":
      return { ...thread, outbox: thread.outbox.filter((one) => one.key !== action.key) };
    case "branch/started":
      return withBranch(thread, action);
    case "edit/changed":
      return { ...thread, edits: withEdit(thread.edits, action.turn_id, action.changes) };
    case "edit/closed":
      return { ...thread, edits: withoutEdit(thread.edits, action.turn_id) };
    case "wait/read":
      return withWaitFacts(thread, action.turn_id, action.waiting_for);
    case "call/decided":
      return withDecision(thread, action.key, action.decision);
    case "turn/steered":
      return { ...thread, steered: { ...thread.steered, [action.turn_id]: action.steered } };
    case "turn/followed":
      // The drawn parts stay until the replay comes, so that nothing jumps and no open step closes.
      return thread.live?.id === action.turn_id ? thread : { ...thread, live: newTurn(action.turn_id) };
    case "turn/events":
      return withEvents(thread, action);
    default:
      return action satisfies never;
  }
}

/** The newest messages replace the end of those that are loaded; earlier ones stay. */
function withTail(thread: Thread, page: ListPage<Message>): Thread {
  const before = new Map(thread.messages.map((message) => [messageKey(message), message]));
  const fresh = page.data.toReversed();
  const first = fresh[0];
  const place = first ? placeOf(thread.messages, first) : -1;
  const isWhole = page.next_cursor === null || place < 0;
  const listed = new Set(fresh.map((message) => message.turn_id));
  const ids = new Set(fresh.map((message) => message.id));
  const merged = withSteers(isWhole ? fresh : [...thread.messages.slice(0, place), ...fresh]);
  const messages = merged.map((message) => same(before.get(messageKey(message)), message));
  // A turn whose answer is in the transcript is no longer live, even if its stream has not ended.
  const isAnswered = fresh.some((message) => message.turn_id === thread.live?.id && !isOpen(message.status));
  return {
    ...thread,
    messages: sameList(thread.messages, messages),
    older: isWhole ? page.next_cursor : thread.older,
    live: isAnswered ? null : thread.live,
    outbox: thread.outbox.filter((one) => !listed.has(one.turn_id ?? "") && !ids.has(one.message_id ?? "")),
  };
}

/** Where this message is, or the one that this page has shown for it before it had an id. */
function placeOf(messages: readonly ThreadMessage[], wanted: Message): number {
  const place = messages.findIndex((message) => message.id === wanted.id);
  return place >= 0 ? place : messages.findIndex((message) => messageKey(message) === messageKey(wanted));
}

function same<Value>(before: Value | undefined, after: Value): Value {
  return before !== undefined && JSON.stringify(before) === JSON.stringify(after) ? before : after;
}

function sameList<Value>(before: readonly Value[], after: readonly Value[]): readonly Value[] {
  return before.length === after.length && before.every((value, at) => value === after[at]) ? before : after;
}

/** The server has accepted the message: it is the newest one now, or is queued behind the running turn. */
function withAccepted(thread: Thread, key: string, turnId: string, messageId?: string): Thread {
  const outgoing = thread.outbox.find((one) => one.key === key);
  if (!outgoing) return thread;
  // Words that steer a turn may have reached it before the response came.
  const isTaken = messageId !== undefined && [...Object.values(thread.steered).flat().map((one) => one.message_id), ...thread.messages.map((one) => one.id)].includes(messageId);
  if (isTaken) return { ...thread, outbox: thread.outbox.filter((one) => one.key !== key && one.turn_id !== turnId) };
  if (thread.live !== null && thread.live.id !== turnId) {
    // A refresh may have shown it in the queue before the response to its request came.
    const once = thread.outbox.filter((one) => one.key === key || one.turn_id !== turnId);
    return withOutgoing({ ...thread, outbox: once }, key, { status: "queued", turn_id: turnId, ...(messageId === undefined ? {} : { message_id: messageId }) });
  }
  const outbox = thread.outbox.filter((one) => one.key !== key && one.turn_id !== turnId);
  if (thread.messages.some((message) => message.turn_id === turnId)) return { ...thread, outbox };
  return { ...thread, outbox, messages: [...thread.messages, userMessage(thread.id, turnId, outgoing)], live: newTurn(turnId) };
}

function withOutgoing(thread: Thread, key: string, changes: Partial<OutgoingMessage>): Thread {
  return { ...thread, outbox: thread.outbox.map((one) => (one.key === key ? { ...one, ...changes } : one)) };
}

function userMessage(conversationId: string, turnId: string, outgoing: Pick<OutgoingMessage, "text" | "attachments" | "created_at">): Message {
  return {
    id: `${turnId}:user`,
    conversation_id: conversationId,
    turn_id: turnId,
    role: "user",
    content: outgoing.text ? [{ type: "text", text: outgoing.text }] : [],
    attachments: [...outgoing.attachments],
    sources: [],
    usage: null,
    status: "running",
    error: null,
    model: null,
    metadata: {},
    created_at: outgoing.created_at,
  };
}

/** A new turn replaces a turn and all turns after it. */
function withBranch(thread: Thread, action: Extract<ThreadAction, { type: "branch/started" }>): Thread {
  const place = thread.messages.findIndex((message) => message.turn_id === action.turn_id);
  if (place < 0) return { ...thread, live: newTurn(action.new_turn_id) };
  const question = thread.messages[place];
  const before = thread.messages.slice(0, place);
  if (question?.role !== "user") return { ...thread, messages: before, live: newTurn(action.new_turn_id) };
  const { edited } = action;
  const changed: Partial<Message> = edited ? { content: edited.text ? [{ type: "text", text: edited.text }] : [], attachments: [...edited.files] } : {};
  const siblings = [...(question.siblings ?? [action.turn_id]), action.new_turn_id];
  const versions = withVersion(question, action.turn_id, action.new_turn_id, edited !== null);
  const edit: Message = { ...question, id: `${action.new_turn_id}:user`, turn_id: action.new_turn_id, ...changed, status: "running", siblings, versions, created_at: action.now ?? question.created_at };
  return { ...thread, messages: [...before, edit], live: newTurn(action.new_turn_id) };
}

/** An edit is another version of the question. A regenerated answer is another answer to the same one. */
function withVersion(question: Message, turnId: string, newTurnId: string, isEdit: boolean): string[][] {
  const known = versionsOf(question);
  const groups = known.length ? known.map((group) => [...group]) : [[turnId]];
  const own = isEdit ? undefined : groups.find((group) => group.includes(turnId));
  if (own) own.push(newTurnId);
  else groups.push([newTurnId]);
  return groups;
}

function withEvents(thread: Thread, { turn_id: turnId, events, now, isReplay }: Extract<ThreadAction, { type: "turn/events" }>): Thread {
  if (thread.live?.id !== turnId) return thread;
  const live = events.reduce(reduceTurn, isReplay ? newTurn(turnId) : thread.live);
  const shown = live.steered.length ? withSteered(thread, live) : thread;
  return isSettled(live) ? withAnswer(shown, live, now) : { ...shown, live };
}

/** Words that have reached the turn are part of it, and no longer outgoing. */
function withSteered(thread: Thread, { id, steered }: TurnDisplay): Thread {
  const taken = new Set(steered.map((one) => one.message_id));
  const outbox = thread.outbox.filter((one) => !taken.has(one.message_id ?? ""));
  return { ...thread, outbox, steered: { ...thread.steered, [id]: steered } };
}

/** The answer becomes a message with the same parts that were drawn. */
function withAnswer(thread: Thread, turn: TurnDisplay, now: number): Thread {
  const status = turn.status as Message["status"];
  const { error } = turn;
  const messages: ThreadMessage[] = thread.messages.map((message) => (message.turn_id === turn.id ? { ...message, status, error } : message));
  for (const { message_id: id, text } of turn.steered) {
    if (messages.some((message) => message.id === id)) continue;
    const words = userMessage(thread.id, turn.id, { text, attachments: [], created_at: now });
    messages.push({ ...words, id, status, error, isSteer: true });
  }
  const question = messages.find((message) => message.turn_id === turn.id);
  if (turn.content.length || turn.status === "succeeded")
    messages.push({
      id: turn.message_id ?? `${turn.id}:assistant`,
      conversation_id: thread.id,
      turn_id: turn.id,
      role: "assistant",
      content: [...turn.content],
      attachments: [],
      sources: [...turn.sources],
      usage: turn.usage,
      status,
      error,
      model: question?.model ?? null,
      metadata: question?.metadata ?? {},
      created_at: now,
      ...(turn.finish ? { finish: turn.finish } : {}),
      ...(question?.siblings ? { siblings: question.siblings } : {}),
      ...(question?.versions ? { versions: question.versions } : {}),
    });
  return { ...thread, messages, live: null };
}
