/** Queued messages of a conversation, as the server lists them: of this page, of other tabs and of other clients. */
import type { Conversation, Message, ListPage, QueuedTurn } from "../wire/types.js";
import { messageText } from "./message.js";
import type { OutgoingMessage, Thread } from "./thread.js";

/**
 * The thread with the queue of this conversation. `known` are the queued messages that the page knew of when it sent the
 * request. Those that the response does not list have started or were cancelled. Messages that were queued after the request
 * are newer than the response and stay. The page's own values stay too: they say whether a message starts a branch.
 */
export function withQueue(thread: Thread, conversation: Conversation, known: readonly OutgoingMessage[]): Thread {
  const queued = conversation.queued_turns;
  if (!queued) return thread;
  const next = queued.find((turn) => turn.id === thread.live?.id);
  // The page followed it as if it ran. Behind a running turn it is queued like the others; else it is the next to start.
  const live = next && conversation.running_turn ? null : thread.live;
  const started = new Set(thread.messages.map((message) => message.turn_id));
  const messages = next && live && !started.has(next.id) ? [...thread.messages, next.message] : thread.messages;
  const here = new Map([...known, ...thread.outbox].map((one) => [one.turn_id, one]));
  const waiting = queued.filter((turn) => !started.has(turn.id) && turn.id !== live?.id).map((turn) => here.get(turn.id) ?? outgoingOf(turn));
  const listed = new Set([...known, ...waiting].map((one) => one.turn_id));
  const others = thread.outbox.filter((one) => !listed.has(one.turn_id));
  return { ...thread, messages, live, outbox: [...waiting, ...others] };
}

/** The queued messages of a thread. */
export const queuedIn = (thread: Thread | undefined): OutgoingMessage[] => thread?.outbox.filter((one) => one.status === "queued") ?? [];

/** The messages that this page has sent. A message that is known only from the server's queue has its turn id as key. */
export const sentByThisPage = (thread: Thread): OutgoingMessage[] => thread.outbox.filter((one) => one.key !== one.turn_id);

export const queuedIds = (conversation: Conversation): string => (conversation.queued_turns ?? []).map((turn) => turn.id).join();

/** Whether both can be of the same moment. They come from two requests, and a turn may start or end in between. */
export function isConsistent(conversation: Conversation, newest: ListPage<Message>): boolean {
  const { head_turn_id: head, running_turn: running } = conversation;
  // The head moves when a turn ends. Until then the messages end with the running turn, which may be on another branch.
  const tip = running?.id ?? head;
  const hasTip = !tip || newest.data.some((message) => message.turn_id === tip);
  return hasTip && newest.data.every((message) => (message.status === "running" || message.status === "waiting") === (message.turn_id === running?.id));
}

function outgoingOf({ id, message }: QueuedTurn): OutgoingMessage {
  return {
    key: id,
    text: messageText(message.content),
    attachments: message.attachments,
    agent_id: null,
    model: null,
    if_busy: "enqueue",
    status: "queued",
    turn_id: id,
    message_id: message.id,
    error: null,
    created_at: message.created_at,
  };
}
