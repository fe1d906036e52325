/**
 * The event stream of one turn. When the connection breaks, it connects again at its cursor, so that each event is read once.
 * Decision: docs/decisions/1003
 */
import { ConnectionLost, InvalidRequest, TurnFailed, TurnStopped, TurnkeepError } from "./errors.js";
import { isSettled, newTurn, reduceTurn, type TurnDisplay } from "./state/turn.js";
import { Decoder } from "./stream/decoder.js";
import { isTerminal, type StreamEvent } from "./stream/events.js";
import { SseParser } from "./stream/sse.js";
import { WordReader, type Words } from "./stream/words.js";
import { Pauses, refusalOf, type Transport } from "./transport.js";
import type { Turn } from "./wire/types.js";

/** The server sends at least a comment every 15 s; a connection that is silent for longer is dead. */
const SILENCE_MS = 40_000;

/** What the server says of a turn when it accepts the question. */
export interface StartedTurn {
  readonly turn_id: string;
  readonly conversation_id?: string;
}

export interface StreamOptions {
  /** The cursor of a stream that was read before: its events are not sent again. */
  after?: string;
  /** Stops the reading, with an error. The turn goes on. */
  signal?: AbortSignal;
  /** How long to try without any progress; as the client, unless it is given. */
  patienceMs?: number;
  /** Called when the connection is there (`true`), and when it is lost and tried again (`false`). */
  onConnection?(isGood: boolean): void;
}

/**
 * Read it with `for await`. A loop that was left can be taken up by another loop, which continues after the last event.
 * An event `restart` says that the events so far are void, because the server does not know the cursor: all follow anew.
 */
export class TurnStream implements AsyncIterable<StreamEvent> {
  /** The turn as its events so far show it. Without `after` it is what a reader of the page sees. */
  turn: TurnDisplay;
  /** After the last event that was read; null at the beginning. */
  cursor: string | null;
  /** null until the server has accepted the question. */
  turnId: string | null = null;
  conversationId: string | null = null;

  #transport: Transport;
  #start: () => Promise<StartedTurn>;
  #started: Promise<StartedTurn> | null = null;
  #options: StreamOptions;
  #decoder = new Decoder();
  #closed = new AbortController();
  #isAtEnd = false;
  #lastProgress = 0;
  #wake: (() => void) | null = null;

  /** `start` names the turn, and may ask for it first. It is called when the stream is read for the first time. */
  constructor(transport: Transport, start: () => Promise<StartedTurn>, options: StreamOptions = {}) {
    this.#transport = transport;
    this.#start = start;
    this.#options = options;
    this.cursor = options.after ?? null;
    this.turn = newTurn("");
  }

  /** The id of the turn, once the server has accepted the question. It need not be called before the stream is read. */
  async started(): Promise<string> {
    this.#started ??= this.#start();
    try {
      const { turn_id: turnId, conversation_id: conversationId } = await this.#started;
      this.turnId = turnId;
      this.conversationId ??= conversationId ?? null;
      if (!this.turn.id) this.turn = { ...this.turn, id: turnId };
      return turnId;
    } catch (error) {
      this.#started = null;
      throw error;
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<StreamEvent, void, undefined> {
    const { signal, onConnection, patienceMs = this.#transport.patienceMs } = this.#options;
    const turnId = await this.started();
    this.#lastProgress = Date.now();
    for (const pauses = new Pauses(); !this.isOver; ) {
      const { cursor } = this;
      try {
        yield* this.#connection(turnId);
        if (this.isOver) return;
      } catch (error) {
        signal?.throwIfAborted();
        if (this.#closed.signal.aborted) return;
        const isPassing = error instanceof TurnkeepError && (error.status === 0 || error.status === 429 || error.status >= 500);
        if (!isPassing) throw error;
      }
      if (this.cursor !== cursor) pauses.reset();
      onConnection?.(false);
      const ms = pauses.next();
      if (Date.now() - this.#lastProgress + ms > this.#transport.patienceNow(patienceMs))
        throw new ConnectionLost("The stream broke, and the server did not come back in time. The turn goes on: follow it later.", { turnId, cursor: this.cursor });
      await this.#sleep(ms);
      signal?.throwIfAborted();
    }
  }

  /** The text of the answer as it comes, without the reasoning, each word once. Words that were missed come with the next event. */
  async *words(): AsyncGenerator<Words, void, undefined> {
    const isCut = this.turn.user_message_id === null && (this.cursor?.includes(".") ?? false);
    const reader = new WordReader(this.turn.text, isCut);
    for await (const event of this) {
      const words = reader.read(event);
      if (words) yield words;
    }
  }

  /** Whether there is nothing more to read: the turn has ended, or the stream was closed. */
  get isOver(): boolean {
    return this.#isAtEnd || this.#closed.signal.aborted;
  }

  /** Read to the end. Returns the turn with its answer; throws TurnFailed if there is none. */
  async result(): Promise<TurnDisplay> {
    const turn = await this.settled();
    if (turn.status === "cancelled") throw new TurnStopped(turn);
    if (turn.status !== "succeeded") throw new TurnFailed(turn);
    return turn;
  }

  /** Read to the end. Returns the turn however it ended. */
  async settled(): Promise<TurnDisplay> {
    for await (const _ of this);
    return this.turn;
  }

  /** Stop the turn. Its last event says so. */
  async cancel(): Promise<Turn> {
    return await this.#transport.request<Turn>("POST", `/v1/turns/${await this.started()}/cancel`, { isSafe: true });
  }

  /** Stop reading. The turn goes on. */
  close(): void {
    this.#closed.abort();
    this.#wake?.();
  }

  /** Connect again at once: the network is back, or the tab is visible again. */
  reconnect(): void {
    this.#wake?.();
  }

  /** The events of one connection. */
  async *#connection(turnId: string): AsyncGenerator<StreamEvent, void, undefined> {
    const connection = new AbortController();
    const stop = () => connection.abort();
    const signals = [this.#closed.signal, ...(this.#options.signal ? [this.#options.signal] : [])];
    for (const signal of signals) signal.addEventListener("abort", stop);
    if (signals.some((signal) => signal.aborted)) stop();
    let silence = setTimeout(stop, SILENCE_MS);
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (this.cursor !== null) headers["last-event-id"] = this.cursor;
      const response = await this.#transport.send("GET", `/v1/turns/${turnId}/events`, { headers, signal: connection.signal });
      if (response.status === 204) {
        this.#isAtEnd = true;
        return;
      }
      if (!response.ok || !response.body) throw await refusalOf(response);
      this.#options.onConnection?.(true);
      const parser = new SseParser();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(stop, SILENCE_MS);
        this.#lastProgress = Date.now();
        for (const frame of parser.feed(value)) {
          const events = this.#decoder.read(frame);
          if (frame.id !== null) this.cursor = frame.id;
          for (const event of events) {
            this.#add(event);
            yield event;
          }
        }
      }
    } catch (error) {
      if (error instanceof InvalidRequest && this.cursor !== null) yield this.#restart();
      else if (error instanceof TurnkeepError || signals.some((signal) => signal.aborted)) throw error;
      else throw new ConnectionLost();
    } finally {
      clearTimeout(silence);
      for (const signal of signals) signal.removeEventListener("abort", stop);
      connection.abort();
    }
  }

  #add(event: StreamEvent): void {
    this.turn = reduceTurn(this.turn, event);
    if (event.type === "turn") this.conversationId = event.conversation_id;
    this.#isAtEnd = isTerminal(event) || isSettled(this.turn);
  }

  #restart(): StreamEvent {
    this.cursor = null;
    this.#decoder = new Decoder();
    this.turn = newTurn(this.turn.id);
    return { type: "restart" };
  }

  #sleep(ms: number): Promise<void> {
    const { signal } = this.#options;
    return new Promise((resolve) => {
      const wake = () => {
        clearTimeout(timer);
        signal?.removeEventListener("abort", wake);
        this.#wake = null;
        resolve();
      };
      const timer = setTimeout(wake, ms);
      signal?.addEventListener("abort", wake);
      this.#wake = wake;
      if (this.#closed.signal.aborted || signal?.aborted) wake();
    });
  }
}
