/** What waits in a conversation, as the server has it: messages of this page, of other tabs and of other devices. */
import type { Conversation, Message, ListPage, QueuedTurn } from "../wire/types";
import { messageText } from "./message";
import type { OutgoingMessage, Thread } from "./thread";

/**
 * The thread with the queue of this conversation. What the page knows of a message stays: that it takes the place of
 * another. `known` is what waited, as far as the page knew, when it asked; what of that the server does not name has started
 * or was cancelled. What was sent after the page had asked is newer than the answer, and stays.
 */
export function withQueue(thread: Thread, conversation: Conversation, known: readonly OutgoingMessage[]): Thread {
  const queued = conversation.queued_turns;
  if (!queued) return thread;
  const next = queued.find((turn) => turn.id === thread.live?.id);
  // It was followed as if it ran. Behind another turn it waits like the others; else it is the next to start.
  const live = next && conversation.running_turn ? null : thread.live;
  const started = new Set(thread.messages.map((message) => message.turn_id));
  const messages = next && live && !started.has(next.id) ? [...thread.messages, next.message] : thread.messages;
  const here = new Map([...known, ...thread.outbox].map((one) => [one.turn_id, one]));
  const waiting = queued.filter((turn) => !started.has(turn.id) && turn.id !== live?.id).map((turn) => here.get(turn.id) ?? outgoingOf(turn));
  const told = new Set([...known, ...waiting].map((one) => one.turn_id));
  const others = thread.outbox.filter((one) => !told.has(one.turn_id));
  return { ...thread, messages, live, outbox: [...waiting, ...others] };
}

/** What waits as far as this thread knows. */
export const queuedIn = (thread: Thread | undefined): OutgoingMessage[] => thread?.outbox.filter((one) => one.status === "queued") ?? [];

/** What this page itself has sent. A message that only the queue tells of has its turn for a key. */
export const sentByThisPage = (thread: Thread): OutgoingMessage[] => thread.outbox.filter((one) => one.key !== one.turn_id);

export const queuedIds = (conversation: Conversation): string => (conversation.queued_turns ?? []).map((turn) => turn.id).join();

/** Whether both may be of one moment. They are asked for separately, and a turn may have started or ended between. */
export function isConsistent(conversation: Conversation, newest: ListPage<Message>): boolean {
  const { head_turn_id: head, running_turn: running } = conversation;
  // The head is set as a turn ends. Until then the page ends with the one that runs, which may stand beside the head.
  const tip = running?.id ?? head;
  const hasTip = !tip || newest.data.some((message) => message.turn_id === tip);
  return hasTip && newest.data.every((message) => (message.status === "running") === (message.turn_id === running?.id));
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
    error: null,
    created_at: message.created_at,
  };
}
