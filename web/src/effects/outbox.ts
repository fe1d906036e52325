/** Messages that the user sent and that the transcript does not show yet: send, repeat, cancel. */
import { threadId } from "../state/selectors";
import { NEW } from "../state/state";
import type { OutgoingMessage } from "../state/thread";
import { ApiError } from "../wire/client";
import * as routes from "../wire/routes";
import type { FileRef, IfBusy } from "../wire/types";
import { errorText } from "./notices";
import { loadUnsent, saveQueued, saveUnsent } from "./outboxStorage";
import type { Services } from "./services";

export interface NewMessage {
  text: string;
  attachments: readonly FileRef[];
  agentId: string | null;
  model: string | null;
  ifBusy: IfBusy;
}

type Needs = Pick<Services, "store" | "session" | "connection" | "navigation" | "threads" | "uploads" | "tabs">;

export class Outbox {
  #needs: Needs;
  /** The newest request that creates the new conversation, until it is answered. The next message waits for it. */
  #creation: Promise<void> | null = null;
  /** The keys of messages whose request is under way. */
  #posting = new Set<string>();

  constructor(needs: Needs) {
    this.#needs = needs;
  }

  /** Send a message in the thread in view. */
  async send(message: NewMessage): Promise<void> {
    const outgoing: OutgoingMessage = {
      key: crypto.randomUUID(),
      text: message.text,
      attachments: message.attachments,
      agent_id: message.agentId,
      model: message.model,
      if_busy: message.ifBusy,
      status: "sending",
      turn_id: null,
      error: null,
      created_at: Date.now(),
    };
    const id = threadId(this.#state);
    // The first message of the conversation may still be unanswered when this one arrives.
    const isSecond = id === NEW && this.#creation !== null && outgoing.if_busy === "reject";
    await this.#add(id, isSecond ? { ...outgoing, if_busy: "enqueue" } : outgoing);
  }

  /** Send a refused message again. It keeps its key, so it cannot be doubled. */
  async sendAgain(id: string, key: string): Promise<void> {
    const refused = this.#state.threads[id]?.outbox.find((one) => one.key === key);
    if (refused) await this.#add(id, { ...refused, status: "sending", error: null });
  }

  /** Send what was not sent before the page was reloaded, or before the session had ended. */
  resend(): void {
    for (const { id, outgoing } of loadUnsent(this.#state)) {
      if (this.#threadOf(outgoing.key) !== null) {
        if (outgoing.status === "sending" && !this.#posting.has(outgoing.key)) void this.#post(outgoing);
        continue;
      }
      if (outgoing.status === "sending") void this.#add(id, outgoing);
      else this.#needs.store.dispatch({ type: "outbox/added", id, outgoing });
    }
  }

  /** Show a message that the server has accepted and queued. */
  addQueued(id: string, outgoing: OutgoingMessage): void {
    this.#needs.store.dispatch({ type: "outbox/added", id, outgoing });
    saveQueued(id, this.#state.threads[id]);
  }

  /** Take a message out. If its request is under way, the turn is cancelled as soon as the server has accepted it. */
  remove(id: string, key: string): void {
    this.#needs.store.dispatch({ type: "outbox/removed", id, key });
    saveQueued(id, this.#state.threads[id]);
    saveUnsent(this.#state);
  }

  async cancelQueued(id: string, turnId: string, key: string): Promise<void> {
    const { threads, tabs } = this.#needs;
    await threads.cancelTurn(turnId);
    this.remove(id, key);
    tabs.post({ kind: "conversation", conversationId: id });
    await threads.refresh(id);
  }

  async #add(id: string, outgoing: OutgoingMessage): Promise<void> {
    this.#needs.store.dispatch({ type: "outbox/added", id, outgoing });
    saveUnsent(this.#state);
    if (id !== NEW) return await this.#post(outgoing);
    // Only one message creates the conversation. The next one follows it there, or creates one itself if the first was refused.
    const request = this.#creation ? this.#creation.then(() => this.#post(outgoing)) : this.#post(outgoing);
    this.#creation = request;
    await request;
    if (this.#creation === request) this.#creation = null;
  }

  async #post(outgoing: OutgoingMessage): Promise<void> {
    const { store, session, connection, threads } = this.#needs;
    const id = this.#threadOf(outgoing.key);
    // It was taken out while it waited for another message.
    if (id === null) return;
    const body = {
      ...(id === NEW ? {} : { conversation_id: id }),
      message: outgoing.text,
      attachment_ids: outgoing.attachments.map((file) => file.file_id),
      agent_id: outgoing.agent_id,
      model: outgoing.model,
      if_busy: outgoing.if_busy,
    };
    const isWanted = () => this.#threadOf(outgoing.key) !== null;
    this.#posting.add(outgoing.key);
    try {
      const accepted = await connection.retry(() => routes.ask(body, outgoing.key), isWanted);
      if (isWanted()) this.#accepted(id, accepted.conversation_id, outgoing.key, accepted.turn_id);
      // It was taken out while the request was under way.
      else await threads.cancelTurn(accepted.turn_id);
    } catch (error) {
      if (session.hasEnded(error)) return;
      const code = error instanceof ApiError ? error.code : "internal";
      const current = this.#threadOf(outgoing.key);
      if (current !== null) store.dispatch({ type: "outbox/refused", id: current, key: outgoing.key, error: { code, message: errorText(error) } });
      saveUnsent(this.#state);
    } finally {
      this.#posting.delete(outgoing.key);
    }
  }

  #accepted(from: string, id: string, key: string, turnId: string): void {
    const { store, threads, tabs } = this.#needs;
    if (from === NEW) this.#created(id);
    store.dispatch({ type: "outbox/accepted", id, key, turn_id: turnId });
    saveQueued(id, this.#state.threads[id]);
    saveUnsent(this.#state);
    tabs.post({ kind: "conversation", conversationId: id });
    threads.turnAccepted(id, turnId);
  }

  /** The new conversation has an id. If it is in view, its address and the draft of the next message follow. */
  #created(id: string): void {
    const { store, navigation, uploads } = this.#needs;
    store.dispatch({ type: "thread/created", id });
    const { route } = this.#state;
    if (route.page !== "chat" || route.conversationId !== null) return;
    uploads.moveDraft(id);
    navigation.replace({ page: "chat", conversationId: id });
  }

  /** The thread that holds the message; null if it was taken out. A new thread changes its id while messages wait in it. */
  #threadOf(key: string): string | null {
    return Object.values(this.#state.threads).find((thread) => thread.outbox.some((one) => one.key === key))?.id ?? null;
  }

  get #state() {
    return this.#needs.store.get();
  }
}
