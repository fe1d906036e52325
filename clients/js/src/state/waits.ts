/** A turn that waits for a person: who may decide about its calls, and what was decided about each. */
import type { Call, DecidedCall } from "../stream/events.js";
import type { Conversation, Me, WaitingFor } from "../wire/types.js";
import type { Thread } from "./thread.js";
import type { TurnWait } from "./turn.js";

/** A decision about one call. */
export interface CallDecision {
  /** `failed`: the request was refused, and the call is still open. */
  readonly status: "sending" | "decided" | "failed";
  /** null: it was decided elsewhere, and how is not known. */
  readonly decision: "allow" | "deny" | null;
  readonly isEdited?: boolean;
  readonly isRemembered?: boolean;
  /** Whether another decision than this user's came first. */
  readonly isOthers?: boolean;
  /** Who decided, as the server names them. */
  readonly by?: string;
  readonly reason?: string;
  readonly error?: string;
}

/** What the server says of a wait beside its events. */
export interface WaitFacts {
  readonly turn_id: string;
  readonly expires_at: number;
  readonly approvers: readonly string[];
}

/** A call is asked about again under the same id if the model repeats it. The end of the wait tells both apart. */
export const decisionKey = (wait: TurnWait, callId: string): string => `${callId}@${wait.expires_at}`;

/** What was decided about a call: on this page, or elsewhere, as the stream tells. */
export function decisionOf(thread: Thread | undefined, wait: TurnWait, callId: string): CallDecision | undefined {
  const known = thread?.decisions[decisionKey(wait, callId)];
  if (known && known.status !== "failed") return known;
  const made = wait.decided.find((each) => each.call_id === callId);
  return made ? madeElsewhere(made) : known;
}

const madeElsewhere = (made: DecidedCall): CallDecision => ({
  status: "decided",
  decision: made.decision,
  isOthers: true,
  by: made.by,
  ...(made.args ? { isEdited: true } : {}),
  ...(made.reason ? { reason: made.reason } : {}),
});

/** The calls that this page may still decide about. */
export const openCalls = (thread: Thread | undefined, wait: TurnWait): readonly Call[] =>
  wait.approvals.filter((call) => (decisionOf(thread, wait, call.id)?.status ?? "failed") === "failed");

/** The thread after the server was asked what its turn waits for. Calls that are not open any more were decided elsewhere. */
export function withWaitFacts(thread: Thread, turnId: string, waiting: WaitingFor | null): Thread {
  const wait = thread.live?.id === turnId ? thread.live.wait : null;
  // The turn has gone on, or waits for something else by now. Its stream tells.
  if (!wait || !waiting || waiting.expires_at !== wait.expires_at) return thread;
  const facts: WaitFacts = { turn_id: turnId, expires_at: wait.expires_at, approvers: waiting.approvers ?? ["author"] };
  const open = new Set(waiting.type === "approval" ? waiting.calls.map((call) => call.id) : []);
  const decided = new Map((waiting.decided ?? []).map((made) => [made.call_id, made]));
  const decisions = { ...thread.decisions };
  for (const call of wait.approvals) {
    const key = decisionKey(wait, call.id);
    if (open.has(call.id) || decisions[key]?.status === "decided" || decisions[key]?.status === "sending") continue;
    const made = decided.get(call.id);
    decisions[key] = made ? madeElsewhere(made as DecidedCall) : { status: "decided", decision: null, isOthers: true };
  }
  return { ...thread, waitFacts: facts, decisions };
}

export function withDecision(thread: Thread, key: string, decision: CallDecision): Thread {
  return { ...thread, decisions: { ...thread.decisions, [key]: decision } };
}

/** Who decides about the calls of the turn that waits: this user, or only others. The user who asked, unless the server says otherwise. */
export function mayDecide(thread: Thread, me: Me | null): boolean {
  const { waitFacts: facts, live, conversation } = thread;
  if (!me || !live?.wait || facts?.turn_id !== live.id || facts.expires_at !== live.wait.expires_at) return true;
  const isAuthor = !conversation || conversation.user_id === me.user_id;
  return (facts.approvers.includes("author") && isAuthor) || (facts.approvers.includes("admin") && me.role !== "member");
}

/** What the list says of a conversation whose turn waits. `others`: this page knows that the user may not decide. */
export function waitBadge(conversation: Conversation, thread: Thread | undefined, me: Me | null): "yours" | "others" | "client_tools" | null {
  const waiting = conversation.running_turn?.waiting_for;
  if (!waiting) return null;
  if (waiting !== "approval") return "client_tools";
  return thread && thread.live?.id === conversation.running_turn?.id && !mayDecide(thread, me) ? "others" : "yours";
}
