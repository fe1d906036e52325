/** One conversation on a screen: what it shows, and what the user can do. It knows nothing of React. */
import { type Conversation, type Decision, decisionKey, type FileRef, isConsistent, type ListPage, type Message, newThread, NotFound, openCalls, queuedIn, reduceThread, type Thread, type ThreadAction, type Turnkeep, TurnkeepError, TurnReader } from "@turnkeep/client";

/** The thread of a conversation that does not exist yet. */
const NEW = "new";
const NEWEST_MESSAGES = 40;
/** How often a conversation and its messages are read until they are of the same moment. */
const MAX_READS = 3;

export interface ChatOptions {
  /** The agent of new conversations. */
  agent?: string | undefined;
  /** The conversation to show. Without one, a new one begins with the first message. */
  conversationId?: string | null | undefined;
  /** Whether a new conversation takes the place of one that does not exist any more, or is not the user's. */
  beginsAnew?: boolean | undefined;
  /** Called with the id of the conversation, once it exists. */
  onConversation?: ((id: string) => void) | undefined;
}

export interface ChatState {
  readonly thread: Thread;
  /** Whether the stream of the answer is lost, and is being connected again. */
  readonly isReconnecting: boolean;
}

export class Chat {
  #client: Turnkeep;
  #options: ChatOptions;
  #state: ChatState;
  #reader: TurnReader | null = null;
  #listeners = new Set<() => void>();
  #isClosed = false;

  constructor(client: Turnkeep, options: ChatOptions = {}) {
    this.#client = client;
    this.#options = options;
    const id = options.conversationId ?? NEW;
    const thread = newThread(id);
    this.#state = { thread: id === NEW ? { ...thread, status: "ready" } : thread, isReconnecting: false };
  }

  /** Load the conversation, and follow the turn that runs in it. */
  async open(): Promise<void> {
    this.#isClosed = false;
    if (this.#state.thread.id !== NEW) await this.refresh();
  }

  /** Stop following. The turn goes on. */
  close(): void {
    this.#isClosed = true;
    this.#reader?.close();
    this.#reader = null;
  }

  get = (): ChatState => this.#state;

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  /** Send a message with files. A message that is sent while an answer is written waits behind it. */
  async send(text: string, files: readonly File[] = []): Promise<void> {
    const key = newKey();
    const attachments: FileRef[] = [];
    this.#dispatch({ type: "outbox/added", outgoing: { key, text, attachments, agent_id: null, model: null, if_busy: "enqueue", status: "sending", turn_id: null, error: null, created_at: Date.now() } });
    try {
      for (const { id, name, mime_type, size } of await Promise.all(files.map((file) => this.#client.files.upload(file))))
        attachments.push({ type: "file", file_id: id, name, mime_type, size });
      await this.#ask(key, text, attachments);
    } catch (error) {
      this.#dispatch({ type: "outbox/refused", key, error: failureOf(error) });
    }
  }

  /** Send a message again that was refused. */
  async sendAgain(key: string): Promise<void> {
    const outgoing = this.#state.thread.outbox.find((one) => one.key === key);
    if (!outgoing) return;
    const again = newKey();
    this.#dispatch({ type: "outbox/removed", key });
    this.#dispatch({ type: "outbox/added", outgoing: { ...outgoing, key: again, status: "sending", error: null } });
    try {
      await this.#ask(again, outgoing.text, outgoing.attachments);
    } catch (error) {
      this.#dispatch({ type: "outbox/refused", key: again, error: failureOf(error) });
    }
  }

  async #ask(key: string, text: string, attachments: readonly FileRef[]): Promise<void> {
    const { id } = this.#state.thread;
    try {
      await this.#askIn(id, key, text, attachments);
    } catch (error) {
      if (!(error instanceof NotFound) || !(await this.#isReplaced(id))) throw error;
      await this.#askIn(this.#state.thread.id, key, text, attachments);
    }
  }

  async #askIn(id: string, key: string, text: string, attachments: readonly FileRef[]): Promise<void> {
    const { agent } = this.#options;
    const where = id !== NEW ? { conversation_id: id } : agent ? { agent_id: agent } : {};
    const files = attachments.length ? { attachment_ids: attachments.map((file) => file.file_id) } : {};
    const accepted = await this.#client.turns.start({ message: text, if_busy: "enqueue", ...where, ...files }, { idempotencyKey: key });
    if (id === NEW) {
      this.#show({ thread: { ...this.#state.thread, id: accepted.conversation_id } });
      this.#options.onConversation?.(accepted.conversation_id);
    }
    this.#dispatch({ type: "outbox/accepted", key, turn_id: accepted.turn_id });
    if (this.#state.thread.live?.id === accepted.turn_id) this.#follow(accepted.turn_id);
  }

  /** Whether this conversation is missing, so that a new one has begun. Something else may be missing, such as a file. */
  async #isReplaced(id: string): Promise<boolean> {
    if (id === NEW || !this.#options.beginsAnew) return false;
    if (this.#state.thread.id === id) await this.refresh();
    return this.#state.thread.id !== id;
  }

  /** A new conversation, with the messages that were not accepted in the old one. */
  #beginAnew(): void {
    this.#reader?.close();
    this.#reader = null;
    const outbox = this.#state.thread.outbox.filter((one) => one.turn_id === null);
    this.#show({ thread: { ...newThread(NEW), status: "ready", outbox }, isReconnecting: false });
  }

  /** Stop the answer that is being written. */
  async stop(): Promise<void> {
    const { live } = this.#state.thread;
    if (live) await this.#client.turns.cancel(live.id).catch(() => undefined);
    this.#reader?.reconnect();
  }

  /** Decide about one call for which the turn waits, or about all. */
  async decide(decision: Decision["decision"], callId?: string): Promise<void> {
    const { thread } = this.#state;
    const wait = thread.live?.wait;
    if (!thread.live || !wait) return;
    const calls = openCalls(thread, wait).filter((call) => callId === undefined || call.id === callId);
    const mark = (status: "sending" | "decided" | "failed", error?: string) => {
      for (const call of calls)
        this.#dispatch({ type: "call/decided", key: decisionKey(wait, call.id), decision: { status, decision: status === "failed" ? null : decision, ...(error ? { error } : {}) } });
    };
    mark("sending");
    try {
      await this.#client.turns.decide(thread.live.id, calls.map((call) => ({ call_id: call.id, decision })));
      mark("decided");
    } catch (error) {
      mark("failed", failureOf(error).message);
    }
    this.#reader?.reconnect();
  }

  /** Earlier messages. */
  async loadOlder(): Promise<void> {
    const { thread } = this.#state;
    if (!thread.older || thread.isLoadingOlder) return;
    this.#dispatch({ type: "thread/loading-older" });
    try {
      this.#dispatch({ type: "thread/older", page: await this.#client.conversations.messagePage(thread.id, { order: "desc", limit: NEWEST_MESSAGES, cursor: thread.older }) });
    } catch {
      this.#dispatch({ type: "thread/older-failed" });
    }
  }

  /** Compare with the server: another device may have written in it. */
  async refresh(): Promise<void> {
    const { id } = this.#state.thread;
    try {
      const known = queuedIn(this.#state.thread);
      const { conversation, page } = await this.#read(id);
      if (this.#isClosed || this.#state.thread.id !== id) return;
      this.#dispatch({ type: "thread/refreshed", conversation, page, known });
      const running = conversation.running_turn?.id;
      if (running && this.#reader?.turnId !== running) this.#follow(running);
    } catch (error) {
      if (this.#state.thread.id !== id) return;
      if (error instanceof NotFound && this.#options.beginsAnew) this.#beginAnew();
      else this.#dispatch({ type: "thread/failed", isMissing: error instanceof NotFound, error: failureOf(error).message });
    }
  }

  async #read(id: string): Promise<{ conversation: Conversation; page: ListPage<Message> }> {
    for (let reads = 1; ; reads += 1) {
      const [conversation, page] = await Promise.all([this.#client.conversations.get(id), this.#client.conversations.messagePage(id, { order: "desc", limit: NEWEST_MESSAGES })]);
      if (reads === MAX_READS || isConsistent(conversation, page)) return { conversation, page };
    }
  }

  #follow(turnId: string): void {
    this.#reader?.close();
    this.#dispatch({ type: "turn/followed", turn_id: turnId });
    // A stream that is read from its beginning replaces what was drawn, once its events are there.
    let isReplay = true;
    const stream = this.#client.turns.follow(turnId, { patienceMs: Number.POSITIVE_INFINITY, onConnection: (isGood) => this.#show({ isReconnecting: !isGood }) });
    const reader = new TurnReader(turnId, stream, {
      onEvents: (events) => {
        this.#dispatch({ type: "turn/events", turn_id: turnId, events, now: Date.now(), isReplay });
        isReplay = false;
      },
      onRestart: () => {
        isReplay = true;
      },
      onEnd: () => {
        if (this.#reader === reader) this.#reader = null;
        this.#show({ isReconnecting: false });
        void this.refresh();
      },
    });
    this.#reader = reader;
  }

  #dispatch(action: DistributiveOmit<ThreadAction, "id">): void {
    const { thread } = this.#state;
    this.#show({ thread: reduceThread(thread, { ...action, id: thread.id } as ThreadAction) });
  }

  #show(changes: Partial<ChatState>): void {
    if (this.#isClosed) return;
    this.#state = { ...this.#state, ...changes };
    for (const listener of this.#listeners) listener();
  }
}

type DistributiveOmit<Type, Key extends PropertyKey> = Type extends unknown ? Omit<Type, Key> : never;

function failureOf(error: unknown): { code: string; message: string } {
  return error instanceof TurnkeepError ? { code: error.code, message: error.detail } : { code: "unexpected", message: error instanceof Error ? error.message : String(error) };
}

function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
