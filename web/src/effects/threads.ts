/** Conversations that are open: load and refresh them, follow the turn that runs in the one in view, stop it. */
import { type Conversation, isConsistent, type ListPage, type Message, newTurn, type OutgoingMessage, type Part, queuedIds, queuedIn, reduceTurn, type StreamEvent, type Turn, type TurnReader, waitingFor, wholeContent } from "@turnkeep/client";
import { pathOf, type Route } from "../state/route";
import { currentThread, threadId } from "../state/selectors";
import * as routes from "../wire/routes";
import { words } from "../words";
import { errorText, isNotFound } from "./notices";
import { loadQueued, saveQueued } from "./outboxStorage";
import type { Services } from "./services";

const NEWEST_MESSAGES = 40;
const OLDER_MESSAGES = 100;
const LOADING_PAUSE_MS = 50;
/** How often a conversation and its messages are read until they are of the same moment. */
const MAX_READS = 3;

type Needs = Pick<Services, "store" | "session" | "connection" | "notices" | "navigation" | "conversations">;

export class Threads {
  #needs: Needs;
  /** The one stream of this tab: it belongs to the thread in view. */
  #stream: TurnReader | null = null;
  /** A conversation that is in no list, shown beside a form. */
  #beside: string | null = null;
  /** Turns whose events are read to find the places of words that steered them. */
  #placing = new Set<string>();
  #reads = 0;
  /** The newest read that each thread shows. The response to an earlier read comes too late. */
  #shownReads = new Map<string, number>();

  constructor(needs: Needs) {
    this.#needs = needs;
    needs.session.onEnd(() => this.unfollow());
    needs.navigation.onShow((route, previous) => this.#show(route, previous));
  }

  #show(route: Route, previous: Route): void {
    const state = this.#state;
    if (state.session === "signed_in" && route.page === "turn") {
      this.unfollow();
      void this.openTurn(route.turnId);
    }
    if (state.session !== "signed_in" || route.page !== "chat") return;
    // A source was opened or closed beside the thread. The thread stays as it is.
    const isSameThread = previous.page === "chat" && previous.conversationId === route.conversationId && pathOf(previous) !== pathOf(route);
    if (isSameThread && currentThread(state)?.status === "ready") return;
    if (route.conversationId === null) this.unfollow();
    else void this.open(route.conversationId);
  }

  isInView(id: string): boolean {
    return id === this.#beside || threadId(this.#state) === id;
  }

  /** Show a conversation that is in no list beside a form, until the returned function is called. It is deleted then. */
  openBeside(id: string): () => void {
    this.#beside = id;
    void this.open(id);
    return () => {
      if (this.#beside === id) this.#beside = null;
      if (this.#stream && this.#state.threads[id]?.live?.id === this.#stream.turnId) this.unfollow();
      // If that fails, the server deletes it some days later.
      void routes.deleteConversation(id).catch(() => undefined);
    };
  }

  // --- load and refresh

  async open(id: string): Promise<void> {
    if (this.#stream && this.#state.threads[id]?.live?.id !== this.#stream.turnId) this.unfollow();
    this.#needs.store.dispatch({ type: "thread/opened", id });
    await this.#load(id, "thread/loaded");
  }

  /**
   * What a turn of another user waits for, as a thread of its own that has only the card. An admin can read the turn while
   * it waits, but not its conversation or its events.
   */
  async openTurn(turnId: string): Promise<void> {
    const { store, session } = this.#needs;
    const show = (event: StreamEvent) => store.dispatch({ type: "turn/events", id: turnId, turn_id: turnId, events: [event], now: Date.now() });
    try {
      const { conversation_id, attempt, waiting_for: waiting } = await routes.turn(turnId);
      store.dispatch({ type: "turn/followed", id: turnId, turn_id: turnId });
      if (waiting?.type !== "approval") show({ type: "turn", turn_id: turnId, conversation_id, user_message_id: "", status: "running", attempt });
      else if (this.#state.threads[turnId]?.live?.wait?.expires_at !== waiting.expires_at) show({ type: "approval", calls: [...waiting.calls], expires_at: waiting.expires_at });
      store.dispatch({ type: "wait/read", id: turnId, turn_id: turnId, waiting_for: waiting ?? null });
    } catch (error) {
      if (session.hasEnded(error)) return;
      store.dispatch({ type: "thread/failed", id: turnId, isMissing: isNotFound(error), error: errorText(error) });
    }
  }

  /** Load it again if it is loaded. */
  async refresh(id: string): Promise<void> {
    if (this.#state.threads[id]?.status === "ready") await this.#load(id, "thread/refreshed");
  }

  async #load(id: string, type: "thread/loaded" | "thread/refreshed"): Promise<void> {
    const { store, session, conversations } = this.#needs;
    this.#reads += 1;
    const read = this.#reads;
    try {
      const found = await this.#read(id);
      if (read < (this.#shownReads.get(id) ?? 0)) return;
      this.#shownReads.set(id, read);
      const conversation = this.#seen(found.conversation);
      store.dispatch({ type, id, ...found, conversation });
      if (id !== this.#beside) conversations.update(conversation);
      this.#followRunning(found.conversation);
      saveQueued(id, this.#state.threads[id]);
      void this.readWait(id);
      this.#placeSteers(id);
    } catch (error) {
      if (session.hasEnded(error)) return;
      store.dispatch({ type: "thread/failed", id, isMissing: isNotFound(error), error: errorText(error) });
    }
  }

  /** A conversation, its newest messages, and the queued messages that this page knew of when it sent the requests. */
  async #read(id: string): Promise<{ conversation: Conversation; page: ListPage<Message>; known: OutgoingMessage[] }> {
    for (let reads = 1; ; reads += 1) {
      const known = [...loadQueued(id), ...queuedIn(this.#state.threads[id])];
      const [conversation, page] = await Promise.all([
        routes.conversation(id),
        routes.messages(id, { order: "desc", limit: NEWEST_MESSAGES }),
      ]);
      if (reads === MAX_READS || isConsistent(conversation, page)) return { conversation, page, known };
    }
  }

  /** A conversation that is in view is read. The server is told, so that no other device marks it as unread. */
  #seen(conversation: Conversation): Conversation {
    if (!conversation.is_unread || document.visibilityState !== "visible" || threadId(this.#state) !== conversation.id) return conversation;
    // If this fails, the conversation is marked until it is opened again.
    void routes.changeConversation(conversation.id, { is_unread: false }).catch(() => undefined);
    return { ...conversation, is_unread: false };
  }

  async loadOlder(id: string): Promise<void> {
    const { store, notices } = this.#needs;
    const thread = this.#state.threads[id];
    if (!thread?.older || thread.isLoadingOlder) return;
    store.dispatch({ type: "thread/loading-older", id });
    try {
      const page = await routes.messages(id, { order: "desc", limit: OLDER_MESSAGES, cursor: thread.older });
      store.dispatch({ type: "thread/older", id, page });
      this.#placeSteers(id);
    } catch (error) {
      store.dispatch({ type: "thread/older-failed", id });
      notices.report(error);
    }
  }

  /** Load all messages; whether that succeeded. */
  async loadAll(id: string): Promise<boolean> {
    for (;;) {
      const thread = this.#state.threads[id];
      if (!thread?.older) return thread?.older === null;
      // Scrolling may be loading the next ones already.
      if (thread.isLoadingOlder) await new Promise((resolve) => setTimeout(resolve, LOADING_PAUSE_MS));
      else await this.loadOlder(id);
      const { older, isLoadingOlder } = this.#state.threads[id] ?? {};
      if (older === thread.older && !isLoadingOlder) return false;
    }
  }

  /** All parts of an answer whose message was cut. The events of its turn have them. */
  async wholeAnswer(turnId: string): Promise<readonly Part[]> {
    return wholeContent(turnId, await this.#eventsOf(turnId));
  }

  /** Find out where words that steered a turn belong in its answer. The events of the turn tell; messages do not. */
  #placeSteers(id: string): void {
    const { messages = [], steered = {} } = this.#state.threads[id] ?? {};
    const answered = new Set(messages.flatMap((message) => (message.role === "assistant" ? [message.turn_id] : [])));
    for (const turnId of new Set(messages.flatMap((message) => (message.isSteer ? [message.turn_id] : [])))) {
      if (steered[turnId] || this.#placing.has(turnId) || !answered.has(turnId)) continue;
      this.#placing.add(turnId);
      this.#eventsOf(turnId)
        .then((events) => this.#needs.store.dispatch({ type: "turn/steered", id, turn_id: turnId, steered: events.reduce(reduceTurn, newTurn(turnId)).steered }))
        // The words then stay above the answer.
        .catch(() => undefined)
        .finally(() => this.#placing.delete(turnId));
    }
  }

  /** All events of a turn that has ended. */
  #eventsOf(turnId: string): Promise<StreamEvent[]> {
    return new Promise((resolve, reject) => {
      let events: StreamEvent[] = [];
      routes.follow(turnId, {
        onEvents: (more) => events.push(...more),
        onRestart: () => {
          events = [];
        },
        onEnd: (reason) => (reason === "settled" ? resolve(events) : reject(new Error(words.failed))),
      });
    });
  }

  /** Refresh the thread in view if another device or the API has changed it. */
  async checkForChanges(): Promise<void> {
    const { route } = this.#state;
    if (route.page === "turn") return await this.openTurn(route.turnId);
    const thread = currentThread(this.#state);
    if (!thread?.conversation || thread.status !== "ready") return;
    // The stream tells of its own turn. A live turn without a stream has lost its end.
    if (thread.live) return this.#stream?.turnId === thread.live.id ? undefined : await this.refresh(thread.id);
    try {
      const now = await routes.conversation(thread.id);
      this.#needs.connection.restored();
      const before = thread.conversation;
      const isMoved = now.head_turn_id !== before.head_turn_id || now.updated_at !== before.updated_at;
      if (isMoved || now.running_turn?.id !== before.running_turn?.id || queuedIds(now) !== queuedIds(before)) await this.refresh(thread.id);
    } catch (error) {
      this.#needs.session.hasEnded(error);
    }
  }

  /** Ask the server who decides about the calls of a turn that waits, and which of them are still open. */
  async readWait(id: string): Promise<void> {
    const live = this.#state.threads[id]?.live;
    if (!live?.wait?.approvals.length) return;
    try {
      const { waiting_for: waiting } = await routes.turn(live.id);
      this.#needs.store.dispatch({ type: "wait/read", id, turn_id: live.id, waiting_for: waiting ?? null });
    } catch (error) {
      this.#needs.session.hasEnded(error);
    }
  }

  // --- follow

  #followRunning(conversation: Conversation): void {
    const turnId = conversation.running_turn?.id;
    if (!turnId || !this.isInView(conversation.id) || this.#stream?.turnId === turnId) return;
    this.follow(conversation.id, turnId);
  }

  /** Show the events of this turn as they come. The stream of another turn is closed. */
  follow(id: string, turnId: string): void {
    const { store, session, connection, conversations } = this.#needs;
    this.unfollow();
    store.dispatch({ type: "turn/followed", id, turn_id: turnId });
    // A stream that is read from its beginning replaces what was drawn, once its events are there.
    let isReplay = true;
    const stream: TurnReader = routes.follow(turnId, {
      onEvents: (events) => {
        store.dispatch({ type: "turn/events", id, turn_id: turnId, events, now: Date.now(), isReplay });
        isReplay = false;
        if (events.some((event) => event.type === "result" || event.type === "error")) store.dispatch({ type: "conversations/ended", id, turn_id: turnId });
        if (events.some((event) => event.type === "turn" || event.type === "approval" || event.type === "client_calls")) this.#showWait(id, turnId);
      },
      onRestart: () => {
        isReplay = true;
      },
      onConnection: (isGood) => (isGood ? connection.restored() : connection.lost()),
      onEnd: (reason) => {
        if (this.#stream === stream) this.#stream = null;
        connection.restored();
        if (reason === "signed_out") session.end();
        else void this.refresh(id).then(() => conversations.refresh());
      },
    });
    this.#stream = stream;
  }

  /** The turn begins to wait, or goes on: the list shows it too. */
  #showWait(id: string, turnId: string): void {
    const live = this.#state.threads[id]?.live;
    const waiting = live?.id === turnId && live.wait ? waitingFor(live) : null;
    this.#needs.store.dispatch({ type: "conversations/waiting", id, turn_id: turnId, waiting_for: waiting === "approval" || waiting === "client_tools" ? waiting : null });
    if (waiting === "approval") void this.readWait(id);
  }

  unfollow(): void {
    this.#stream?.close();
    this.#stream = null;
    this.#needs.connection.reset();
  }

  /** Open a broken stream again at once, without waiting for its next try. */
  reconnect(): void {
    this.#stream?.reconnect();
  }

  /** The server has accepted a turn that this page asked for: follow it if it is in view, and read the conversation. */
  turnAccepted(id: string, turnId: string): void {
    const { store, conversations } = this.#needs;
    const isLive = () => this.#state.threads[id]?.live?.id === turnId;
    if (isLive() && this.isInView(id)) this.follow(id, turnId);
    void routes.conversation(id).then((conversation) => {
      store.dispatch({ type: "thread/changed", id, conversation });
      if (id !== this.#beside) conversations.update(conversation);
      // Another client was faster: this turn waits behind one that the page does not show yet.
      if (conversation.queued_turns?.some((turn) => turn.id === turnId) && isLive()) void this.refresh(id);
    }, () => undefined);
  }

  // --- change

  /** Stop the answer that is being written. */
  async stop(id: string): Promise<void> {
    const turnId = this.#state.threads[id]?.live?.id;
    if (turnId) await this.cancelTurn(turnId);
  }

  /** Stop a turn; null if that failed, which the page then says. */
  async cancelTurn(turnId: string): Promise<Turn | null> {
    try {
      const turn = await routes.cancel(turnId);
      this.reconnect();
      return turn;
    } catch (error) {
      this.#needs.notices.report(error);
      return null;
    }
  }

  /** Choose the model or the agent of a conversation; null for the default model, or for no agent. */
  async choose(id: string, choice: { model?: string | null; agent_id?: string | null }): Promise<void> {
    const { store, notices } = this.#needs;
    try {
      store.dispatch({ type: "thread/changed", id, conversation: await routes.changeConversation(id, choice) });
    } catch (error) {
      notices.report(error);
    }
  }

  /** Change the instructions or the temperature of a conversation; null takes one away. Throws if the server refuses it. */
  async change(id: string, changes: { instructions: string | null; temperature: number | null }): Promise<void> {
    this.#needs.store.dispatch({ type: "thread/changed", id, conversation: await routes.changeConversation(id, changes) });
  }

  get #state() {
    return this.#needs.store.get();
  }
}
