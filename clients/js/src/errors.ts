/**
 * Errors of the client, by what a caller can do about them.
 *
 *     TurnkeepError
 *     ├── ConnectionLost     the server did not answer, or went away and did not come back in time
 *     ├── InvalidRequest     400 and 422: the message says what to change
 *     ├── Unauthorized       401: the token is missing, wrong or too old
 *     ├── Forbidden          403
 *     ├── NotFound           404
 *     ├── Conflict           409
 *     │   ├── ConversationBusy   follow `turnId`, wait, or ask with `if_busy`
 *     │   └── AlreadyDecided     another decision about the call came first
 *     ├── TooLarge           413
 *     ├── LimitReached       429: a rate (`retryAfterSeconds`), a quota, or a full queue; `code` says which
 *     ├── Unavailable        502, 503 and 504: a retry may help
 *     ├── Defect             other statuses from 500 on: an operator must look
 *     └── TurnFailed         the turn ended without an answer
 *         └── TurnStopped    because it was cancelled
 *
 * The classes have the names of the Python client. `code` is for programs and never changes; `detail` is for people.
 */
import type { TurnDisplay } from "./state/turn.js";

type Problem = Readonly<Record<string, unknown>>;

/** The root. A status without a class of its own, such as 415, is an error of this class. */
export class TurnkeepError extends Error {
  /** The status of the response; 0 if there was none. */
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  /** All fields of the problem that the server sent (RFC 9457). */
  readonly problem: Problem;
  /** Names the line in the server's log, if the server has answered. */
  readonly requestId: string | null;

  constructor(status: number, code: string, detail: string, problem: Problem = {}, requestId: string | null = null) {
    super(detail);
    this.name = new.target.name;
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.problem = problem;
    this.requestId = requestId;
  }
}

/** No answer came. A turn that was accepted goes on: follow `turnId` after `cursor`. */
export class ConnectionLost extends TurnkeepError {
  readonly turnId: string | null;
  readonly cursor: string | null;

  constructor(detail = "The server cannot be reached.", { turnId = null, cursor = null }: { turnId?: string | null; cursor?: string | null } = {}) {
    super(0, "unreachable", detail);
    this.turnId = turnId;
    this.cursor = cursor;
  }
}

export class InvalidRequest extends TurnkeepError {}
export class Unauthorized extends TurnkeepError {}
export class Forbidden extends TurnkeepError {}
export class NotFound extends TurnkeepError {}
export class Conflict extends TurnkeepError {}
export class TooLarge extends TurnkeepError {}
export class Unavailable extends TurnkeepError {}
export class Defect extends TurnkeepError {}

/** A turn of the conversation is under way. */
export class ConversationBusy extends Conflict {
  get turnId(): string | null {
    return textOf(this.problem["turn_id"]);
  }

  /** What that turn waits for, if it waits. */
  get waitingFor(): string | null {
    return textOf(this.problem["waiting_for"]);
  }
}

/** Another decision about this call came first. */
export class AlreadyDecided extends Conflict {
  /** The decision that holds. */
  get decision(): string | null {
    return textOf(this.problem["decision"]);
  }
}

export class LimitReached extends TurnkeepError {
  /** When to try again; null if waiting does not help. */
  readonly retryAfterSeconds: number | null;

  constructor(status: number, code: string, detail: string, problem: Problem = {}, requestId: string | null = null, retryAfterSeconds: number | null = null) {
    super(status, code, detail, problem, requestId);
    this.retryAfterSeconds = retryAfterSeconds;
  }
}

/** The turn ended without an answer. `turn` has what was kept of it. */
export class TurnFailed extends TurnkeepError {
  readonly turn: TurnDisplay;

  constructor(turn: TurnDisplay) {
    super(0, turn.error?.code ?? "turn_failed", turn.error?.message ?? "The turn ended without an answer.");
    this.turn = turn;
  }
}

export class TurnStopped extends TurnFailed {}

/** The error that the server meant. If the response comes from a proxy, only its status counts. */
export function errorOf(status: number, text: string, headers: Pick<Headers, "get"> = new Headers()): TurnkeepError {
  const problem = problemIn(text);
  const detail = textOf(problem["detail"]) ?? textOf(problem["title"]) ?? `The server answered ${status}.`;
  const code = textOf(problem["code"]) ?? "unknown";
  const requestId = headers.get("x-request-id");
  if (status === 429) {
    const seconds = headers.get("retry-after") ?? "";
    return new LimitReached(status, code, detail, problem, requestId, /^\d+$/.test(seconds) ? Number(seconds) : null);
  }
  const kind = BY_CODE[code] ?? BY_STATUS[status] ?? (status >= 500 ? Defect : TurnkeepError);
  return new kind(status, code, detail, problem, requestId);
}

type Kind = new (status: number, code: string, detail: string, problem: Problem, requestId: string | null) => TurnkeepError;

const BY_CODE: Readonly<Record<string, Kind>> = { conversation_busy: ConversationBusy, already_decided: AlreadyDecided };
const BY_STATUS: Readonly<Record<number, Kind>> = {
  400: InvalidRequest,
  401: Unauthorized,
  403: Forbidden,
  404: NotFound,
  409: Conflict,
  413: TooLarge,
  422: InvalidRequest,
  502: Unavailable,
  503: Unavailable,
  504: Unavailable,
};

function problemIn(text: string): Problem {
  try {
    const value: unknown = JSON.parse(text);
    return typeof value === "object" && value !== null ? (value as Problem) : {};
  } catch {
    return {};
  }
}

function textOf(value: unknown): string | null {
  return typeof value === "string" && value ? value : null;
}
