/** Values that are derived from the state. */
import type { Message } from "../wire/types";
import { messageKey } from "./message";
import { NEW, type State } from "./state";
import type { Failure, OutgoingMessage, Thread } from "./thread";
import type { TurnDisplay } from "./turn";

export const threadId = (state: State): string =>
  state.route.page === "chat" ? (state.route.conversationId ?? NEW) : NEW;

export const currentThread = (state: State): Thread | undefined => state.threads[threadId(state)];

export const isAdmin = (state: State): boolean => state.me !== null && state.me.role !== "member";

/** Whether there is input that a reload would lose. The text of the next message is not: the browser keeps it. */
export const hasUnsavedInput = (state: State): boolean =>
  state.route.page === "settings" ||
  Object.values(state.uploads).some((all) => all.length > 0) ||
  Object.values(state.threads).some((thread) => Object.keys(thread.edits).length > 0);

/** A row of a thread. Its key stays the same when a live answer becomes a message. */
export type MessageRow =
  | { readonly kind: "older"; readonly key: "older" }
  | { readonly kind: "message"; readonly key: string; readonly message: Message }
  | { readonly kind: "live"; readonly key: string; readonly turn: TurnDisplay }
  | { readonly kind: "ending"; readonly key: string; readonly turnId: string; readonly status: Message["status"]; readonly failure: Failure | null; readonly siblings: readonly string[] }
  | { readonly kind: "outgoing"; readonly key: string; readonly outgoing: OutgoingMessage };

/** The rows of messages. They change only when a message changes, not while an answer grows below them. */
export function settledRows(thread: Pick<Thread, "messages" | "older">): MessageRow[] {
  const rows: MessageRow[] = [];
  if (thread.older) rows.push({ kind: "older", key: "older" });
  thread.messages.forEach((message, place) => {
    rows.push({ kind: "message", key: messageKey(message), message });
    const next = thread.messages[place + 1];
    const isUnanswered = message.role === "user" && next?.turn_id !== message.turn_id;
    if (isUnanswered && (message.status === "failed" || message.status === "cancelled"))
      rows.push({ kind: "ending", key: `${message.turn_id}:ending`, turnId: message.turn_id, status: message.status, failure: message.error, siblings: message.siblings ?? [] });
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
