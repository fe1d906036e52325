/** The rows of a thread, as a list draws them. */
import type { Message } from "../wire/types.js";
import { messageKey, type ThreadMessage, versionsOf } from "./message.js";
import type { Failure, OutgoingMessage, Thread } from "./thread.js";
import { isOpen, type SteeredWords, type TurnDisplay } from "./turn.js";

/** A row of a thread. Its key stays the same when a live answer becomes a message. `askedAt`: when the question of an answer came. */
export type MessageRow =
  | { readonly kind: "older"; readonly key: "older" }
  | { readonly kind: "message"; readonly key: string; readonly message: ThreadMessage; readonly steered: readonly SteeredWords[]; readonly askedAt: number | null }
  | { readonly kind: "live"; readonly key: string; readonly turn: TurnDisplay }
  | { readonly kind: "ending"; readonly key: string; readonly turnId: string; readonly status: Message["status"]; readonly failure: Failure | null; readonly versions: readonly (readonly string[])[] }
  | { readonly kind: "outgoing"; readonly key: string; readonly outgoing: OutgoingMessage };

const NONE: readonly SteeredWords[] = [];

/** The rows of messages. They change only when a message changes, not while an answer grows below them. */
export function settledRows(thread: Pick<Thread, "messages" | "older" | "steered">): MessageRow[] {
  const rows: MessageRow[] = [];
  if (thread.older) rows.push({ kind: "older", key: "older" });
  const answered = new Set(thread.messages.flatMap((message) => (message.role === "assistant" ? [message.turn_id] : [])));
  const shown = thread.messages.filter((message) => {
    const places = thread.steered[message.turn_id];
    // Words that steered a turn are drawn inside of its answer, once their place is known.
    return !(message.isSteer && (answered.has(message.turn_id) || isOpen(message.status)) && places?.some((one) => one.message_id === message.id));
  });
  const asked = new Map(thread.messages.flatMap((message) => (message.role === "user" && !message.isSteer ? [[message.turn_id, message.created_at] as const] : [])));
  shown.forEach((message, place) => {
    const steered = message.role === "assistant" ? (thread.steered[message.turn_id] ?? NONE) : NONE;
    rows.push({ kind: "message", key: messageKey(message), message, steered, askedAt: asked.get(message.turn_id) ?? null });
    const next = shown[place + 1];
    const isUnanswered = message.role === "user" && next?.turn_id !== message.turn_id;
    if (isUnanswered && (message.status === "failed" || message.status === "cancelled"))
      rows.push({ kind: "ending", key: `${message.turn_id}:ending`, turnId: message.turn_id, status: message.status, failure: message.error, versions: versionsOf(message) });
  });
  return rows;
}

/** The rows below the messages: the answer that is being written, and outgoing messages. */
export function openRows(thread: Pick<Thread, "live" | "outbox">): MessageRow[] {
  const rows: MessageRow[] = thread.outbox.map((outgoing) => ({ kind: "outgoing", key: outgoing.key, outgoing }));
  if (thread.live) rows.unshift({ kind: "live", key: `${thread.live.id}:assistant`, turn: thread.live });
  return rows;
}

export const isBusy = (thread: Thread | undefined): boolean =>
  thread !== undefined && (thread.live !== null || thread.outbox.some((one) => one.status === "sending"));
