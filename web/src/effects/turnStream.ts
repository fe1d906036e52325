/**
 * The event stream of one turn. When the connection breaks, it connects again at the cursor, for as long as it takes.
 * Events are handed over in batches, about thirty times a second at most. Decision: docs/decisions/1003
 */
import { Decoder } from "../stream/decoder";
import { isTerminal, type StreamEvent } from "../stream/events";
import { SseParser } from "../stream/sse";
import { ApiError, send } from "../wire/client";

export interface TurnStreamListener {
  /** Events in order, each once. */
  onEvents(events: readonly StreamEvent[]): void;
  /** The events so far are void: the stream begins again. */
  onRestart(): void;
  /** No more events will come: the last one was read, the turn does not exist, or the user is signed out. */
  onEnd(reason: "settled" | "gone" | "signed_out"): void;
  onConnection(isGood: boolean): void;
}

const BATCH_MS = 33;
const FIRST_RETRY_MS = 300;
const MAX_RETRY_MS = 5_000;
/** The server sends at least a comment every 15 s; a connection that is silent for longer is dead. */
const SILENCE_MS = 40_000;

/** How one connection ended. */
type Outcome = "settled" | "gone" | "signed_out" | "again" | "restart";

export class TurnStream {
  readonly turnId: string;
  #listener: TurnStreamListener;
  #abort = new AbortController();
  #cursor: string | null = null;
  #batch: StreamEvent[] = [];
  #timer: ReturnType<typeof setTimeout> | null = null;
  #wake: (() => void) | null = null;
  #decoder = new Decoder();

  constructor(turnId: string, listener: TurnStreamListener) {
    this.turnId = turnId;
    this.#listener = listener;
    void this.#run();
  }

  /** Stop reading. The turn goes on. */
  close(): void {
    this.#abort.abort();
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#wake?.();
  }

  /** Connect again at once: the network is back, or the tab is visible again. */
  reconnect(): void {
    this.#wake?.();
  }

  async #run(): Promise<void> {
    let delay = FIRST_RETRY_MS;
    while (!this.#abort.signal.aborted) {
      const cursor = this.#cursor;
      const outcome = await this.#connect();
      if (this.#abort.signal.aborted) return;
      if (outcome === "restart") {
        this.#cursor = null;
        this.#batch = [];
        this.#decoder = new Decoder();
        this.#listener.onRestart();
      } else if (outcome !== "again") {
        this.#flush();
        this.#listener.onConnection(true);
        this.#listener.onEnd(outcome);
        return;
      }
      if (this.#cursor !== cursor) delay = FIRST_RETRY_MS;
      this.#listener.onConnection(false);
      await this.#sleep(delay);
      delay = Math.min(delay * 2, MAX_RETRY_MS);
    }
  }

  async #connect(): Promise<Outcome> {
    const connection = new AbortController();
    const stop = () => connection.abort();
    this.#abort.signal.addEventListener("abort", stop);
    let silence = setTimeout(stop, SILENCE_MS);
    try {
      const headers: Record<string, string> = { accept: "text/event-stream" };
      if (this.#cursor !== null) headers["last-event-id"] = this.#cursor;
      const response = await send("GET", `/v1/turns/${this.turnId}/events`, { headers, signal: connection.signal });
      if (response.status === 204 || response.status === 404) return "gone";
      if (response.status === 401) return "signed_out";
      if (response.status === 422) return this.#cursor === null ? "gone" : "restart";
      if (!response.ok || !response.body) return "again";
      this.#listener.onConnection(true);
      const parser = new SseParser();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return "again";
        clearTimeout(silence);
        silence = setTimeout(stop, SILENCE_MS);
        for (const frame of parser.feed(value)) {
          for (const event of this.#decoder.read(frame)) {
            this.#push(event);
            if (isTerminal(event)) return "settled";
          }
        }
        if (parser.lastId !== null) this.#cursor = parser.lastId;
      }
    } catch (error) {
      if (error instanceof ApiError || connection.signal.aborted || error instanceof TypeError) return "again";
      throw error;
    } finally {
      clearTimeout(silence);
      this.#abort.signal.removeEventListener("abort", stop);
      connection.abort();
    }
  }

  #push(event: StreamEvent): void {
    this.#batch.push(event);
    this.#timer ??= setTimeout(() => this.#flush(), BATCH_MS);
  }

  #flush(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    if (!this.#batch.length || this.#abort.signal.aborted) return;
    const events = this.#batch;
    this.#batch = [];
    this.#listener.onEvents(joined(events));
  }

  #sleep(ms: number): Promise<void> {
    return new Promise((resolve) => {
      const timer = setTimeout(resolve, ms * (0.75 + Math.random() / 2));
      this.#wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  }
}

/** Neighbouring previews of one kind as one event, so that a batch of words is one change. */
export function joined(events: readonly StreamEvent[]): StreamEvent[] {
  const result: StreamEvent[] = [];
  for (const event of events) {
    const last = result.at(-1);
    if (event.type === "delta" && last?.type === "delta" && last.kind === event.kind && last.iteration === event.iteration)
      result[result.length - 1] = { ...last, text: last.text + event.text };
    else result.push(event);
  }
  return result;
}
