/** Values that are derived from the state. */
import { type Thread, waitBadge } from "@turnkeep/client";
import { allListed } from "./conversationList";
import { NEW, type State } from "./state";

export const threadId = (state: State): string =>
  state.route.page === "chat" ? (state.route.conversationId ?? NEW) : NEW;

export const currentThread = (state: State): Thread | undefined => state.threads[threadId(state)];

export const isAdmin = (state: State): boolean => state.me !== null && state.me.role !== "member";

/** Whether there is input that a reload would lose. The text of the next message is not: the browser keeps it. */
export const hasUnsavedInput = (state: State): boolean =>
  state.route.page === "settings" ||
  Object.values(state.uploads).some((all) => all.length > 0) ||
  Object.values(state.threads).some((thread) => Object.keys(thread.edits).length > 0);

/** Whether an answer is being written in a listed conversation that is not in view. The page follows only the one in view. */
export const hasAnswersElsewhere = (state: State): boolean =>
  allListed(state.conversations).some((one) => one.running_turn !== null && !one.running_turn.waiting_for && one.id !== threadId(state));

/** Whether an answer is being written in a listed conversation. */
export const hasAnswers = (state: State): boolean => allListed(state.conversations).some((one) => one.running_turn !== null && !one.running_turn.waiting_for);

/** How many of the listed conversations have an answer that the user has not seen. */
export const unreadCount = (state: State): number => new Set(allListed(state.conversations).flatMap((one) => (one.is_unread ? [one.id] : []))).size;

/** How many of the listed conversations wait for a decision of this user. */
export const approvalCount = (state: State): number =>
  new Set(allListed(state.conversations).filter((one) => waitBadge(one, state.threads[one.id], state.me) === "yours").map((one) => one.id)).size;
