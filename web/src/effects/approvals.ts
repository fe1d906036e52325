/** Decisions about calls for which a turn waits: send them, and learn what others decided. */
import { type CallDecision, type Decision, decisionKey, openCalls, type Thread, TurnkeepError } from "@turnkeep/client";
import * as routes from "../wire/routes";
import { errorText } from "./notices";
import type { Services } from "./services";

export type NewDecision = Omit<Decision, "call_id">;

export type ApprovalNeeds = Pick<Services, "store" | "tabs"> & {
  connection: Pick<Services["connection"], "retry">;
  session: Pick<Services["session"], "hasEnded">;
  threads: Pick<Services["threads"], "readWait" | "reconnect">;
};

export class Approvals {
  #needs: ApprovalNeeds;

  constructor(needs: ApprovalNeeds) {
    this.#needs = needs;
  }

  /** Decide about one call of the turn that waits; whether the decision holds. */
  decide(id: string, callId: string, decision: NewDecision): Promise<boolean> {
    return this.#send(id, [callId], decision);
  }

  /** Decide the same about all calls that are open. */
  decideAll(id: string, decision: NewDecision): Promise<boolean> {
    const thread = this.#thread(id);
    const wait = thread?.live?.wait;
    return this.#send(id, wait ? openCalls(thread, wait).map((call) => call.id) : [], decision);
  }

  async #send(id: string, callIds: readonly string[], decision: NewDecision): Promise<boolean> {
    const { live } = this.#thread(id) ?? {};
    const wait = live?.wait;
    if (!wait || callIds.length === 0) return false;
    const mark = (callId: string, state: CallDecision) => this.#needs.store.dispatch({ type: "call/decided", id, key: decisionKey(wait, callId), decision: state });
    const made = { decision: decision.decision, ...(decision.args ? { isEdited: true } : {}), ...(decision.remember ? { isRemembered: true } : {}), ...(decision.reason ? { reason: decision.reason } : {}) };
    for (const callId of callIds) mark(callId, { ...made, status: "sending" });
    // The first decision holds, and a repeat of it gets the same answer. So the request may be repeated.
    const isWanted = () => this.#thread(id)?.live?.wait === wait;
    try {
      await this.#needs.connection.retry(() => routes.decide(live.id, callIds.map((callId) => ({ ...decision, call_id: callId }))), isWanted);
      for (const callId of callIds) mark(callId, { ...made, status: "decided" });
      this.#needs.tabs.post({ kind: "conversation", conversationId: id });
      this.#needs.threads.reconnect();
      return true;
    } catch (error) {
      const first = error instanceof TurnkeepError && error.code === "already_decided" ? error.problem["decision"] : undefined;
      const isDecided = error instanceof TurnkeepError && error.code === "already_decided" && callIds.length === 1;
      const failed: CallDecision = isDecided
        ? { status: "decided", decision: first === "allow" || first === "deny" ? first : null, isOthers: true }
        : { status: "failed", decision: null, error: errorText(error) };
      for (const callId of callIds) mark(callId, failed);
      if (!this.#needs.session.hasEnded(error)) await this.#needs.threads.readWait(id);
      return false;
    }
  }

  #thread(id: string): Thread | undefined {
    return this.#needs.store.get().threads[id];
  }
}
