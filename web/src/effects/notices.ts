/** Short texts that the page shows for some seconds, errors that it shows until they are dismissed, and errors as texts. */
import { TurnkeepError } from "@turnkeep/client";
import type { Notice } from "../state/state";
import type { Store } from "../state/store";
import { words } from "../words";
import type { Session } from "./session";

const INFO_MS = 4_000;

export class Notices {
  #store: Store;
  #session: Session;
  #count = 0;

  constructor(store: Store, session: Session) {
    this.#store = store;
    this.#session = session;
  }

  show(text: string, kind: Notice["kind"] = "info"): void {
    this.#count += 1;
    const id = this.#count;
    this.#store.dispatch({ type: "notice", notice: { id, text, kind } });
    if (kind === "info") setTimeout(() => this.dismiss(id), INFO_MS);
  }

  dismiss(id: number): void {
    this.#store.dispatch({ type: "notice/gone", id });
  }

  /** Show why a request failed. A request that failed because the session has ended leads to the sign-in form instead. */
  report(error: unknown): void {
    if (!this.#session.hasEnded(error)) this.show(errorText(error), "error");
  }
}

/** An error as a sentence for the user. */
export function errorText(error: unknown): string {
  return error instanceof TurnkeepError ? error.message : words.unexpected;
}

/** Whether the server answered 404: it was deleted, or the user may not see it. The server does not tell which. */
export const isNotFound = (error: unknown): boolean => error instanceof TurnkeepError && error.status === 404;
