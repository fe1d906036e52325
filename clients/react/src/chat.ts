/** One conversation on a screen: what it shows, and what the user can do. It knows nothing of React. */
import {
  type Accepted,
  attachmentIds,
  type Conversation,
  type Decision,
  decisionKey,
  type FileRef,
  type IfBusy,
  isConsistent,
  type ListPage,
  type Message,
  messageText,
  newThread,
  NotFound,
  openCalls,
  type OutgoingMessage,
  queuedIn,
  reduceThread,
  type Thread,
  type ThreadAction,
  type Turnkeep,
  TurnkeepError,
  TurnReader,
} from "@turnkeep/client";

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

/** A file of a message: one to upload, or one that the server has. */
export type ChatFile = File | FileRef;

/** A message that is being written. */
export interface Draft {
  readonly text: string;
  readonly files: readonly ChatFile[];
}

export interface ChatState {
  readonly thread: Thread;
  /** Why the last edit, new answer, change of version or removal was refused. The next one takes it away. */
  readonly failure: string | null;
  /** Whether the stream of the answer is lost, and is being connected again. */
  readonly isReconnecting: boolean;
}

export class Chat {
  #client: Turnkeep;
  #options: ChatOptions;
  #state: ChatState;
  #reader: TurnReader | null = null;
  #listeners = new Set<() => void>();
  /** Messages that the server has not accepted, with the files that it may not have. */
  #unsent = new Map<string, Draft>();
  /** Turns whose steering words are being placed. */
  #placing = new Set<string>();
  #isClosed = false;

  constructor(client: Turnkeep, options: ChatOptions = {}) {
    this.#client = client;
    this.#options = options;
    const id = options.conversationId ?? NEW;
    const thread = newThread(id);
    this.#state = { thread: id === NEW ? { ...thread, status: "ready" } : thread, isReconnecting: false, failure: null };
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
  async send(text: string, files: readonly ChatFile[] = []): Promise<void> {
    const key = this.#add({ text, attachments: files.filter(isStored) });
    this.#unsent.set(key, { text, files });
    try {
      const attachments = await this.#stored(files);
      this.#unsent.set(key, { text, files: attachments });
      if (files.length) this.#dispatch({ type: "outbox/added", outgoing: { ...outgoingOf(key, text), attachments } });
      await this.#ask(key, text, attachments);
      this.#unsent.delete(key);
    } catch (error) {
      this.#refused(key, error);
    }
  }

  /** Add words to the answer that is being written. If it ends before the model has read them, they are the next message. */
  async steer(text: string): Promise<void> {
    const { live } = this.#state.thread;
    if (!live) return await this.send(text);
    const key = this.#add({ text, steers: live.id });
    try {
      const { queued_turn_id: turnId, message_id: messageId } = await this.#client.turns.steer(live.id, text, { idempotencyKey: key });
      this.#accepted(key, turnId, messageId);
    } catch (error) {
      this.#refused(key, error);
    }
  }

  /** Send a message again that was refused. One that could not steer an answer waits behind it. */
  async sendAgain(key: string): Promise<void> {
    const outgoing = this.#state.thread.outbox.find((one) => one.key === key);
    if (!outgoing) return;
    this.#dispatch({ type: "outbox/removed", key });
    const { text, files } = this.#draftOf(outgoing);
    await this.send(text, files);
  }

  /** Do not send a message that waits or was refused. Returns it, unless it was already being answered. */
  async remove(key: string): Promise<Draft | null> {
    const outgoing = this.#state.thread.outbox.find((one) => one.key === key);
    if (!outgoing) return null;
    let isUnread = true;
    if (outgoing.turn_id !== null) {
      const { turn_id: turnId } = outgoing;
      const turn = await this.#try(() => this.#client.turns.cancel(turnId));
      if (!turn) return null;
      // Words that have reached another turn meanwhile are in its answer.
      isUnread = turn.started_at === null && turn.error?.code !== "steered";
    }
    this.#dispatch({ type: "outbox/removed", key });
    if (outgoing.turn_id !== null) void this.refresh();
    return isUnread && outgoing.branch !== "regenerate" ? this.#draftOf(outgoing) : null;
  }

  #draftOf({ key, text, attachments }: OutgoingMessage): Draft {
    const unsent = this.#unsent.get(key);
    this.#unsent.delete(key);
    return unsent ?? { text, files: attachments };
  }

  /**
   * Ask something else in the place of a question. What followed it stays as another version. Returns whether the server
   * has accepted it. While an answer is written, the edit waits behind it, or interrupts it.
   */
  async edit(turnId: string, { text, files }: Draft, ifBusy: IfBusy = "enqueue"): Promise<boolean> {
    const id = this.#state.thread.id;
    const accepted = await this.#try(async () => {
      const attachments = await this.#stored(files);
      const body = { message: text, if_busy: ifBusy, ...attachmentIds(this.#question(turnId), attachments) };
      const key = newKey();
      this.#branch(turnId, await this.#client.turns.edit(id, turnId, body, { idempotencyKey: key }), { ...outgoingOf(key, text), attachments, if_busy: ifBusy, branch: "edit" });
      return true;
    });
    return accepted ?? false;
  }

  /** Have a question answered again. The old answer stays as another version. */
  async regenerate(turnId: string): Promise<void> {
    const question = this.#question(turnId);
    const key = newKey();
    const outgoing = { ...outgoingOf(key, question ? messageText(question.content) : ""), attachments: question?.attachments ?? [], branch: "regenerate" as const };
    await this.#try(async () => {
      this.#branch(turnId, await this.#client.turns.regenerate(this.#state.thread.id, turnId, { if_busy: "enqueue" }, { idempotencyKey: key }), outgoing);
    });
  }

  /**
   * Show another version of a turn, as far as it was shown before: the ids of its versions are its `siblings`. Returns
   * whether the server has accepted it.
   */
  async showVersion(fromTurnId: string, toTurnId: string): Promise<boolean> {
    this.#saveEnd(fromTurnId);
    const head = readEnd(toTurnId) ?? toTurnId;
    const changed = await this.#try(() => this.#client.conversations.update(this.#state.thread.id, { head_turn_id: head }));
    if (changed) await this.refresh();
    return changed !== undefined;
  }

  /** The new turn takes the place of the old one at once, or waits while another answer is written. */
  #branch(turnId: string, { turn_id: newTurnId }: Accepted, outgoing: OutgoingMessage): void {
    if (this.#isClosed) return;
    this.#saveEnd(turnId);
    if (this.#state.thread.live) return this.#dispatch({ type: "outbox/added", outgoing: { ...outgoing, status: "queued", turn_id: newTurnId } });
    const edited = outgoing.branch === "edit" ? { text: outgoing.text, files: outgoing.attachments } : null;
    this.#dispatch({ type: "branch/started", turn_id: turnId, new_turn_id: newTurnId, edited });
    this.#follow(newTurnId);
  }

  /** A version is known by its first turn. This keeps its last one, for when it is shown again. */
  #saveEnd(turnId: string): void {
    const last = this.#state.thread.messages.at(-1)?.turn_id;
    if (last && last !== turnId) writeEnd(turnId, last);
  }

  #question(turnId: string): Message | undefined {
    return this.#state.thread.messages.find((message) => message.turn_id === turnId && message.role === "user");
  }

  /** What the server answers; undefined if it refuses, and then the state says why. */
  async #try<Value>(request: () => Promise<Value>): Promise<Value | undefined> {
    this.#show({ failure: null });
    try {
      return await request();
    } catch (error) {
      this.#show({ failure: failureOf(error).message });
      return undefined;
    }
  }

  /** All files as the server has them. Those that it does not have are uploaded. */
  #stored(files: readonly ChatFile[]): Promise<FileRef[]> {
    return Promise.all(
      files.map(async (file) => {
        if (isStored(file)) return file;
        const { id, name, mime_type, size } = await this.#client.files.upload(file);
        return { type: "file", file_id: id, name, mime_type, size };
      }),
    );
  }

  #add(outgoing: Pick<OutgoingMessage, "text"> & Partial<OutgoingMessage>): string {
    const key = newKey();
    this.#show({ failure: null });
    this.#dispatch({ type: "outbox/added", outgoing: { ...outgoingOf(key, outgoing.text), ...outgoing } });
    return key;
  }

  #accepted(key: string, turnId: string, messageId?: string): void {
    this.#dispatch({ type: "outbox/accepted", key, turn_id: turnId, ...(messageId === undefined ? {} : { message_id: messageId }) });
    if (this.#state.thread.live?.id === turnId) this.#follow(turnId);
  }

  #refused(key: string, error: unknown): void {
    this.#dispatch({ type: "outbox/refused", key, error: failureOf(error) });
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
    this.#accepted(key, accepted.turn_id);
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
    this.#show({ thread: { ...newThread(NEW), status: "ready", outbox }, isReconnecting: false, failure: null });
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
      this.#placeSteers();
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
      this.#placeSteers();
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

  /** Find out where words that steered a turn belong in its answer. The events of the turn tell; messages do not. */
  #placeSteers(): void {
    const { messages, steered } = this.#state.thread;
    const answered = new Set(messages.flatMap((message) => (message.role === "assistant" ? [message.turn_id] : [])));
    for (const turnId of new Set(messages.flatMap((message) => (message.isSteer ? [message.turn_id] : [])))) {
      if (steered[turnId] || this.#placing.has(turnId) || !answered.has(turnId)) continue;
      this.#placing.add(turnId);
      this.#client.turns
        .follow(turnId)
        .settled()
        .then((turn) => this.#dispatch({ type: "turn/steered", turn_id: turnId, steered: turn.steered }))
        // The words then stay above the answer.
        .catch(() => undefined)
        .finally(() => this.#placing.delete(turnId));
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

function outgoingOf(key: string, text: string): OutgoingMessage {
  return { key, text, attachments: [], agent_id: null, model: null, if_busy: "enqueue", status: "sending", turn_id: null, error: null, created_at: Date.now() };
}

export const isStored = (file: ChatFile): file is FileRef => "file_id" in file;

/** Kept in the tab, so that a reload knows it too. A browser may refuse that; then a version begins with its first turn. */
function writeEnd(turnId: string, last: string): void {
  try {
    sessionStorage.setItem(`turnkeep-end:${turnId}`, last);
  } catch {
    return;
  }
}

function readEnd(turnId: string): string | null {
  try {
    return sessionStorage.getItem(`turnkeep-end:${turnId}`);
  } catch {
    return null;
  }
}

function newKey(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
