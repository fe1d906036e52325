/** Messages that the user sent and that the transcript does not show yet: send, repeat, cancel. */
import { type Accepted, type FileRef, type IfBusy, type OutgoingMessage, TurnkeepError } from "@turnkeep/client";
import { newConversation } from "../state/conversationList";
import { threadId } from "../state/selectors";
import { NEW } from "../state/state";
import * as routes from "../wire/routes";
import { errorText } from "./notices";
import { loadUnsent, saveQueued, saveUnsent } from "./outboxStorage";
import type { Services } from "./services";

export interface NewMessage {
  text: string;
  attachments: readonly FileRef[];
  agentId: string | null;
  model: string | null;
  ifBusy: IfBusy;
  /** The turn that the message steers. */
  steers?: string;
}

type Needs = Pick<Services, "store" | "session" | "connection" | "navigation" | "conversations" | "threads" | "drafts" | "uploads" | "tabs">;

export class Outbox {
  #needs: Needs;
  /** The newest request that creates the new conversation, until it is answered. The next message waits for it. */
  #creation: Promise<void> | null = null;
  /** The keys of the messages whose requests are under way. */
  #posting = new Set<string>();
  /** The keys of the messages that this page has had. */
  #seen = new Set<string>();

  constructor(needs: Needs) {
    this.#needs = needs;
  }

  /** Send a message in the thread in view. */
  async send(message: NewMessage): Promise<void> {
    const id = threadId(this.#state);
    const outgoing: OutgoingMessage = {
      key: crypto.randomUUID(),
      text: message.text,
      attachments: message.attachments,
      agent_id: message.agentId,
      model: message.model,
      ...this.#behaviourIn(id),
      if_busy: message.ifBusy,
      ...(message.steers ? { steers: message.steers } : {}),
      status: "sending",
      turn_id: null,
      error: null,
      created_at: Date.now(),
    };
    // The first message of the conversation may still be unanswered when this one arrives.
    const isSecond = id === NEW && this.#creation !== null && outgoing.if_busy === "reject";
    await this.#add(id, isSecond ? { ...outgoing, if_busy: "enqueue" } : outgoing);
  }

  /** Send a refused message again. It keeps its key, so it cannot be doubled. One that could not steer a turn is queued. */
  async sendAgain(id: string, key: string): Promise<void> {
    const refused = this.#state.threads[id]?.outbox.find((one) => one.key === key);
    if (!refused) return;
    const { steers: _, behaviour: __, ...message } = refused;
    await this.#add(id, { ...message, ...this.#behaviourIn(id), status: "sending", error: null });
  }

  /** Send what was not sent before the page was reloaded, or before the session ended. */
  resend(): void {
    for (const { id, outgoing } of loadUnsent(this.#state)) {
      this.#seen.add(outgoing.key);
      if (this.#posting.has(outgoing.key)) continue;
      const here = this.#threadOf(outgoing.key);
      if (outgoing.status === "sending") void this.#add(here ?? id, outgoing);
      else this.#needs.store.dispatch({ type: "outbox/added", id: here ?? id, outgoing });
    }
  }

  /** Show a message that the server has accepted and queued. */
  addQueued(id: string, outgoing: OutgoingMessage): void {
    this.#needs.store.dispatch({ type: "outbox/added", id, outgoing });
    saveQueued(id, this.#state.threads[id]);
  }

  /**
   * Take a message out before the server has accepted it: its text and files are in the composer again. If its request is
   * under way, the turn is cancelled as soon as the server has accepted it.
   */
  takeBack(id: string, key: string): void {
    const outgoing = this.#state.threads[id]?.outbox.find((one) => one.key === key);
    this.#remove(id, key);
    if (outgoing) this.#giveBack(id, outgoing);
  }

  #giveBack(id: string, { text, attachments, branch }: OutgoingMessage): void {
    // The question of an answer that was to be regenerated is in the thread.
    if (branch === "regenerate") return;
    this.#needs.drafts.giveBack(id, text);
    this.#needs.uploads.giveBack(id, attachments);
  }

  #remove(id: string, key: string): void {
    this.#needs.store.dispatch({ type: "outbox/removed", id, key });
    saveQueued(id, this.#state.threads[id]);
    saveUnsent(this.#state, this.#seen);
  }

  /** Do not send a queued message. Its text and files are in the composer again, unless it was already being answered. */
  async cancelQueued(id: string, turnId: string, key: string): Promise<void> {
    const { threads, tabs } = this.#needs;
    const outgoing = this.#state.threads[id]?.outbox.find((one) => one.key === key);
    const turn = await threads.cancelTurn(turnId);
    if (turn === null) return;
    this.#remove(id, key);
    // Words that have reached another turn meanwhile are in its answer.
    if (outgoing && turn.started_at === null && turn.error?.code !== "steered") this.#giveBack(id, outgoing);
    tabs.post({ kind: "conversation", conversationId: id });
    await threads.refresh(id);
  }

  /** A message carries what its conversation will have: sent again after a reload, its request must be the same. */
  #behaviourIn(id: string): Pick<OutgoingMessage, "behaviour"> {
    const { behaviour } = this.#needs.drafts;
    return id === NEW && behaviour ? { behaviour } : {};
  }

  async #add(id: string, outgoing: OutgoingMessage): Promise<void> {
    this.#needs.store.dispatch({ type: "outbox/added", id, outgoing });
    saveUnsent(this.#state, this.#seen);
    if (id !== NEW) return await this.#post(outgoing);
    // Only one message creates the conversation. The next one follows it there, or creates one itself if the first was refused.
    const request = this.#creation ? this.#creation.then(() => this.#post(outgoing)) : this.#post(outgoing);
    this.#creation = request;
    await request;
    if (this.#creation === request) this.#creation = null;
  }

  async #post(outgoing: OutgoingMessage): Promise<void> {
    this.#posting.add(outgoing.key);
    try {
      await this.#ask(outgoing);
    } finally {
      this.#posting.delete(outgoing.key);
    }
  }

  async #ask(outgoing: OutgoingMessage): Promise<void> {
    const { store, session, connection, threads } = this.#needs;
    const id = this.#threadOf(outgoing.key);
    // It was taken out while it waited for another message.
    if (id === null) return;
    const body = {
      ...(id === NEW ? outgoing.behaviour : { conversation_id: id }),
      message: outgoing.text,
      attachment_ids: outgoing.attachments.map((file) => file.file_id),
      agent_id: outgoing.agent_id,
      model: outgoing.model,
      if_busy: outgoing.if_busy,
    };
    const isWanted = () => this.#threadOf(outgoing.key) !== null;
    try {
      const { steers } = outgoing;
      const accepted: Accepted & { message_id?: string } = await connection.retry(() => (steers ? steered(steers, outgoing) : routes.ask(body, outgoing.key)), isWanted);
      if (isWanted()) this.#accepted(id, accepted.conversation_id, outgoing, accepted.turn_id, accepted.message_id);
      // It was taken out while the request was under way.
      else await threads.cancelTurn(accepted.turn_id);
    } catch (error) {
      if (session.hasEnded(error)) return;
      const code = error instanceof TurnkeepError ? error.code : "internal";
      const current = this.#threadOf(outgoing.key);
      if (current !== null) store.dispatch({ type: "outbox/refused", id: current, key: outgoing.key, error: { code, message: errorText(error) } });
      saveUnsent(this.#state, this.#seen);
    }
  }

  #accepted(from: string, id: string, outgoing: OutgoingMessage, turnId: string, messageId?: string): void {
    const { store, threads, tabs } = this.#needs;
    if (from === NEW) this.#created(id, outgoing, turnId);
    store.dispatch({ type: "outbox/accepted", id, key: outgoing.key, turn_id: turnId, ...(messageId ? { message_id: messageId } : {}) });
    saveQueued(id, this.#state.threads[id]);
    saveUnsent(this.#state, this.#seen);
    tabs.post({ kind: "conversation", conversationId: id });
    threads.turnAccepted(id, turnId);
  }

  /** The new conversation has an id: the list shows it. If it is in view, its address and the draft of the next message follow. */
  #created(id: string, outgoing: OutgoingMessage, turnId: string): void {
    const { store, navigation, conversations, drafts, uploads } = this.#needs;
    store.dispatch({ type: "thread/created", id });
    drafts.setBehaviour(null);
    const { route, me } = this.#state;
    if (me) conversations.update(newConversation(id, outgoing, turnId, me, Date.now()));
    if (route.page !== "chat" || route.conversationId !== null) return;
    drafts.move(NEW, id);
    uploads.move(NEW, id);
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

/** Words for a turn that is under way wait as a queued turn until they reach it. If it ends before, they are the next turn. */
async function steered(turnId: string, { text, key }: OutgoingMessage): Promise<Accepted & { message_id?: string }> {
  const { conversation_id, message_id, queued_turn_id } = await routes.steer(turnId, text, key);
  return { conversation_id, message_id, turn_id: queued_turn_id, events_url: `/v1/turns/${queued_turn_id}/events` };
}
