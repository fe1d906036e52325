/** Questions to the state, by name. */
import { messageKey } from "./message";
import { NEW, type State } from "./state";
import type { Failure, OutgoingMessage, Thread } from "./thread";
import type { TurnDisplay } from "./turn";
import type { Message } from "../wire/types";

export const threadId = (state: State): string =>
  state.route.page === "chat" ? (state.route.conversationId ?? NEW) : NEW;

export const currentThread = (state: State): Thread | undefined => state.threads[threadId(state)];

export const isAdmin = (state: State): boolean => state.me !== null && state.me.role !== "member";

/** A row of the thread, with a key that stays while an answer turns from live to settled. */
export type Row =
  | { readonly kind: "older"; readonly key: "older" }
  | { readonly kind: "message"; readonly key: string; readonly message: Message; readonly failure: Failure | null }
  | { readonly kind: "live"; readonly key: string; readonly turn: TurnDisplay }
  | { readonly kind: "ending"; readonly key: string; readonly turnId: string; readonly status: Message["status"]; readonly failure: Failure | null; readonly siblings: readonly string[] }
  | { readonly kind: "outgoing"; readonly key: string; readonly outgoing: OutgoingMessage };

/** The rows of what is settled. They change only when a message does, however fast an answer grows below them. */
export function settledRows(thread: Pick<Thread, "messages" | "failures" | "older">): Row[] {
  const rows: Row[] = [];
  if (thread.older) rows.push({ kind: "older", key: "older" });
  thread.messages.forEach((message, place) => {
    const failure = thread.failures[message.turn_id] ?? null;
    rows.push({ kind: "message", key: messageKey(message), message, failure });
    const next = thread.messages[place + 1];
    const isUnanswered = message.role === "user" && next?.turn_id !== message.turn_id;
    if (isUnanswered && (message.status === "failed" || message.status === "cancelled"))
      rows.push({ kind: "ending", key: `${message.turn_id}:ending`, turnId: message.turn_id, status: message.status, failure, siblings: message.siblings ?? [] });
  });
  return rows;
}

/** The rows below them: the answer that is being written, and what waits to be sent. */
export function openRows(thread: Pick<Thread, "live" | "outbox">): Row[] {
  const rows: Row[] = thread.outbox.map((outgoing) => ({ kind: "outgoing", key: outgoing.key, outgoing }));
  if (thread.live) rows.unshift({ kind: "live", key: `${thread.live.id}:assistant`, turn: thread.live });
  return rows;
}

/** Turns that failed and whose reason is not known here: the transcript does not tell it. */
export function unexplainedFailures(thread: Thread): string[] {
  const failed = thread.messages.filter((message) => message.status === "failed" && !(message.turn_id in thread.failures));
  return [...new Set(failed.map((message) => message.turn_id))];
}

export const isBusy = (thread: Thread | undefined): boolean =>
  thread !== undefined && (thread.live !== null || thread.outbox.some((one) => one.status === "sending"));
