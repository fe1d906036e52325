/**
 * Reads a stream for a screen: events are handed over in batches, about thirty times a second at most, and neighbouring
 * previews as one event, so that a batch of words is one change.
 */
import { Unauthorized } from "./errors.js";
import type { StreamEvent } from "./stream/events.js";
import type { TurnStream } from "./turnStream.js";

export interface TurnListener {
  /** Events in order, each once. */
  onEvents(events: readonly StreamEvent[]): void;
  /** The events so far are void: the stream begins again. */
  onRestart(): void;
  /** No more events will come: the last one was read, the turn cannot be read any more, or the user is signed out. */
  onEnd(reason: "settled" | "gone" | "signed_out"): void;
}

const BATCH_MS = 33;

export class TurnReader {
  readonly turnId: string;
  #stream: TurnStream;
  #listener: TurnListener;
  #batch: StreamEvent[] = [];
  #timer: ReturnType<typeof setTimeout> | null = null;
  #isClosed = false;

  constructor(turnId: string, stream: TurnStream, listener: TurnListener) {
    this.turnId = turnId;
    this.#stream = stream;
    this.#listener = listener;
    void this.#run();
  }

  /** Stop reading. The turn goes on, and the listener is not called any more. */
  close(): void {
    this.#isClosed = true;
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#stream.close();
  }

  /** Connect again at once: the network is back, or the tab is visible again. */
  reconnect(): void {
    this.#stream.reconnect();
  }

  async #run(): Promise<void> {
    let reason: "settled" | "gone" | "signed_out" = "gone";
    try {
      for await (const event of this.#stream) this.#push(event);
      if (this.#stream.turn.error || this.#stream.turn.status === "succeeded") reason = "settled";
    } catch (error) {
      if (error instanceof Unauthorized) reason = "signed_out";
    }
    this.#flush();
    if (!this.#isClosed) this.#listener.onEnd(reason);
  }

  #push(event: StreamEvent): void {
    if (event.type === "restart") {
      this.#batch = [];
      if (!this.#isClosed) this.#listener.onRestart();
      return;
    }
    this.#batch.push(event);
    this.#timer ??= setTimeout(() => this.#flush(), BATCH_MS);
  }

  #flush(): void {
    if (this.#timer !== null) clearTimeout(this.#timer);
    this.#timer = null;
    if (!this.#batch.length || this.#isClosed) return;
    const events = this.#batch;
    this.#batch = [];
    this.#listener.onEvents(joined(events));
  }
}

/** Neighbouring previews of one kind as one event. */
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
