/** Conversations that are open: load and refresh them, follow the turn that runs in the one in view, stop it. */
import { isConsistent, queuedIds, queuedIn } from "../state/queue";
import { pathOf, type Route } from "../state/route";
import { currentThread, threadId } from "../state/selectors";
import type { OutgoingMessage } from "../state/thread";
import { wholeContent } from "../state/turn";
import type { StreamEvent } from "../stream/events";
import * as routes from "../wire/routes";
import type { Conversation, Message, ListPage, Part, Turn } from "../wire/types";
import { words } from "../words";
import { errorText, isNotFound } from "./notices";
import { loadQueued, saveQueued } from "./outboxStorage";
import type { Services } from "./services";
import { TurnStream } from "./turnStream";

const NEWEST_MESSAGES = 40;
const OLDER_MESSAGES = 100;
/** How often a conversation and its messages are read until they are of the same moment. */
const MAX_READS = 3;

type Needs = Pick<Services, "store" | "session" | "connection" | "notices" | "navigation" | "conversations">;

export class Threads {
  #needs: Needs;
  /** The one stream of this tab: it belongs to the thread in view. */
  #stream: TurnStream | null = null;
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
    if (state.session !== "signed_in" || route.page !== "chat") return;
    // A source was opened or closed beside the thread. The thread stays as it is.
    const isSameThread = previous.page === "chat" && previous.conversationId === route.conversationId && pathOf(previous) !== pathOf(route);
    if (isSameThread && currentThread(state)?.status === "ready") return;
    if (route.conversationId === null) this.unfollow();
    else void this.open(route.conversationId);
  }

  // --- load and refresh

  async open(id: string): Promise<void> {
    if (this.#stream && this.#state.threads[id]?.live?.id !== this.#stream.turnId) this.unfollow();
    this.#needs.store.dispatch({ type: "thread/opened", id });
    await this.#load(id, "thread/loaded");
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
      store.dispatch({ type, id, ...found });
      conversations.update(found.conversation);
      this.#followRunning(found.conversation);
      saveQueued(id, this.#state.threads[id]);
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

  async loadOlder(id: string): Promise<void> {
    const { store, notices } = this.#needs;
    const thread = this.#state.threads[id];
    if (!thread?.older || thread.isLoadingOlder) return;
    store.dispatch({ type: "thread/loading-older", id });
    try {
      const page = await routes.messages(id, { order: "desc", limit: OLDER_MESSAGES, cursor: thread.older });
      store.dispatch({ type: "thread/older", id, page });
    } catch (error) {
      store.dispatch({ type: "thread/older-failed", id });
      notices.report(error);
    }
  }

  /** All parts of an answer whose message was cut. The events of its turn have them. */
  wholeAnswer(turnId: string): Promise<readonly Part[]> {
    return new Promise((resolve, reject) => {
      let events: StreamEvent[] = [];
      new TurnStream(turnId, {
        onEvents: (more) => events.push(...more),
        onRestart: () => {
          events = [];
        },
        onConnection: () => undefined,
        onEnd: (reason) => (reason === "settled" ? resolve(wholeContent(turnId, events)) : reject(new Error(words.failed))),
      });
    });
  }

  /** Refresh the thread in view if another device or the API has changed it. */
  async checkForChanges(): Promise<void> {
    const thread = currentThread(this.#state);
    if (!thread?.conversation || thread.status !== "ready") return;
    // The stream tells of its own turn. A live turn without a stream has lost its end to a broken connection.
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

  // --- follow

  #followRunning(conversation: Conversation): void {
    const turnId = conversation.running_turn?.id;
    if (!turnId || threadId(this.#state) !== conversation.id || this.#stream?.turnId === turnId) return;
    this.follow(conversation.id, turnId);
  }

  /** Show the events of this turn as they come. The stream of another turn is closed. */
  follow(id: string, turnId: string): void {
    const { store, session, connection, conversations } = this.#needs;
    this.unfollow();
    store.dispatch({ type: "turn/followed", id, turn_id: turnId });
    // A stream that is read from its beginning replaces what was drawn, once its events are there.
    let isReplay = true;
    const stream: TurnStream = new TurnStream(turnId, {
      onEvents: (events) => {
        store.dispatch({ type: "turn/events", id, turn_id: turnId, events, now: Date.now(), isReplay });
        isReplay = false;
      },
      onRestart: () => {
        isReplay = true;
      },
      onConnection: (isGood) => (isGood ? connection.restored() : connection.lost()),
      onEnd: (reason) => {
        if (this.#stream === stream) this.#stream = null;
        if (reason === "signed_out") session.end();
        else void this.refresh(id).then(() => conversations.refresh());
      },
    });
    this.#stream = stream;
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
    if (isLive() && threadId(this.#state) === id) this.follow(id, turnId);
    void routes.conversation(id).then((conversation) => {
      store.dispatch({ type: "thread/changed", id, conversation });
      conversations.update(conversation);
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

  /** Choose the model or the agent of a conversation. */
  async choose(id: string, choice: { model?: string; agent_id?: string }): Promise<void> {
    const { store, notices } = this.#needs;
    try {
      store.dispatch({ type: "thread/changed", id, conversation: await routes.changeConversation(id, choice) });
    } catch (error) {
      notices.report(error);
    }
  }

  get #state() {
    return this.#needs.store.get();
  }
}
