/** Values that are derived from the state. */
import { type Thread, waitBadge } from "@turnkeep/client";
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
  state.conversations.items.some((one) => one.running_turn !== null && !one.running_turn.waiting_for && one.id !== threadId(state));

/** How many of the listed conversations wait for a decision of this user. */
export const approvalCount = (state: State): number =>
  state.conversations.items.filter((one) => waitBadge(one, state.threads[one.id], state.me) === "yours").length;
