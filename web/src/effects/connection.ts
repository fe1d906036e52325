/** Whether the server can be reached, as the page shows it, and requests that are repeated until it answers. */
import { TurnkeepError } from "@turnkeep/client";
import type { Store } from "../state/store";

const RETRY_MS = 1_500;

export class Connection {
  #store: Store;

  constructor(store: Store) {
    this.#store = store;
  }

  /** The server answered. */
  restored(): void {
    this.#store.dispatch({ type: "connection", connection: "good" });
  }

  /** A request got no answer, or a stream broke. */
  lost(): void {
    this.#store.dispatch({ type: "connection", connection: navigator.onLine ? "reconnecting" : "offline" });
  }

  /** No request is under way that could tell; what the browser knows of the network counts. */
  reset(): void {
    this.#store.dispatch({ type: "connection", connection: navigator.onLine ? "good" : "offline" });
  }

  /**
   * Repeat a request until the server answers, or until `isWanted` says that nothing waits for it any more. The request
   * must carry an idempotency key, which makes it safe to repeat.
   */
  async retry<Body>(request: () => Promise<Body>, isWanted: () => boolean): Promise<Body> {
    for (;;) {
      try {
        const body = await request();
        this.restored();
        return body;
      } catch (error) {
        if (!(error instanceof TurnkeepError) || error.status !== 0) throw error;
        this.lost();
        await pause(RETRY_MS);
        if (!isWanted()) throw error;
      }
    }
  }
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
