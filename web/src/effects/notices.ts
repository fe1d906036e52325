/** Short texts that the page shows for some seconds, and errors as texts. */
import type { Notice } from "../state/state";
import type { Store } from "../state/store";
import { ApiError } from "../wire/client";
import { words } from "../words";
import type { Session } from "./session";

const INFO_MS = 4_000;
const ERROR_MS = 10_000;

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
    setTimeout(() => this.dismiss(id), kind === "error" ? ERROR_MS : INFO_MS);
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
  return error instanceof ApiError ? error.message : words.unexpected;
}

/** Whether the server answered 404: it was deleted, or the user may not see it. The server does not tell which. */
export const isNotFound = (error: unknown): boolean => error instanceof ApiError && error.status === 404;
