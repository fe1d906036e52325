/** What the parts of the desk need from it: a way to speak, to complain, and to go somewhere. */
import type { Route } from "../state/route";
import { ApiError } from "../wire/client";
import { words } from "../words";

export interface Office {
  say(text: string, kind?: "info" | "error"): void;
  complain(error: unknown): void;
  /** Whether the error means that the server does not know us any more; the page then says so. */
  isSignedOut(error: unknown): boolean;
  go(route: Route): void;
}

/** An error as a sentence for a person. */
export function sentence(error: unknown): string {
  return error instanceof ApiError ? error.message : words.unexpected;
}

/** Whether it is not there: deleted since, or none of the reader's business. The server does not tell which. */
export const isMissing = (error: unknown): boolean => error instanceof ApiError && error.status === 404;
