/** Turns: ask, follow, decide, steer, stop. */
import { parseExact, withExactArgs } from "./stream/jsonText.js";
import type { RequestOptions, Transport } from "./transport.js";
import { type StartedTurn, type StreamOptions, TurnStream } from "./turnStream.js";
import type { Accepted, Again, ClientResult, Decision, Edit, NewTurn, Steering, Turn } from "./wire/types.js";

export interface AskOptions {
  /** The same key gets the same turn, however often the question is sent. Without one, the client makes one. */
  idempotencyKey?: string;
}

/** A text, or the whole body of the request. */
export type Question = string | NewTurn;

export class Turns {
  #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /**
   * Ask. Returns when the server has accepted the question, not when it is answered. The turn runs in the background: it
   * goes on when its readers leave, until it has ended or is cancelled.
   */
  start(question: Question, options?: AskOptions): Promise<Accepted> {
    return this.#ask("/v1/turns", typeof question === "string" ? { message: question } : question, options);
  }

  /** Ask, and read the answer as it comes. The question is sent when the stream is read for the first time. */
  stream(question: Question, { idempotencyKey = newKey(), ...options }: AskOptions & StreamOptions = {}): TurnStream {
    return new TurnStream(this.#transport, () => this.start(question, { idempotencyKey }), options);
  }

  /** The stream of a turn that exists, from its beginning, or after a cursor. */
  follow(turnId: string, options?: StreamOptions): TurnStream {
    const known: StartedTurn = { turn_id: turnId };
    return new TurnStream(this.#transport, () => Promise.resolve(known), options);
  }

  /** A turn. Calls that it waits for have `exactArgs` too. */
  get(turnId: string, options?: RequestOptions): Promise<Turn> {
    return this.#transport.request<Turn>("GET", turnPath(turnId), { parse: parseTurn, ...options });
  }

  /** Stop a turn. What was said until then is kept. A turn that has ended stays as it is. */
  cancel(turnId: string): Promise<Turn> {
    return this.#transport.request<Turn>("POST", turnPath(turnId, "cancel"), { isSafe: true });
  }

  /** Decide about calls for which the turn waits. The first decision of a call holds; a repeat of it changes nothing. */
  decide(turnId: string, decisions: readonly Decision[]): Promise<Turn> {
    return this.#transport.request<Turn>("POST", turnPath(turnId, "approvals"), { body: { decisions }, isSafe: true });
  }

  /** Let a call run, perhaps with other arguments. */
  approve(turnId: string, callId: string, options: Pick<Decision, "args" | "remember"> = {}): Promise<Turn> {
    return this.decide(turnId, [{ ...options, call_id: callId, decision: "allow" }]);
  }

  /** Do not let a call run. The model is told the reason. */
  deny(turnId: string, callId: string, options: Pick<Decision, "reason"> = {}): Promise<Turn> {
    return this.decide(turnId, [{ ...options, call_id: callId, decision: "deny" }]);
  }

  /** Send the results of client tools for which the turn waits. */
  results(turnId: string, results: readonly ClientResult[]): Promise<Turn> {
    return this.#transport.request<Turn>("POST", turnPath(turnId, "results"), { body: { results }, isSafe: true });
  }

  /** Add words to a turn that is under way. If it ends before the model has them, they become the next turn. */
  steer(turnId: string, message: string, { idempotencyKey = newKey() }: AskOptions = {}): Promise<Steering> {
    return this.#transport.request<Steering>("POST", turnPath(turnId, "steer"), { body: { message }, headers: { "idempotency-key": idempotencyKey } });
  }

  /** Ask the same again, on a new branch. */
  regenerate(conversationId: string, turnId: string, body: Again = {}, options?: AskOptions): Promise<Accepted> {
    return this.#ask(branchPath(conversationId, turnId, "regenerate"), body, options);
  }

  /** Ask something else in the place of a question, on a new branch. */
  edit(conversationId: string, turnId: string, body: Edit, options?: AskOptions): Promise<Accepted> {
    return this.#ask(branchPath(conversationId, turnId, "edit"), body, options);
  }

  #ask(path: string, body: object, { idempotencyKey = newKey() }: AskOptions = {}): Promise<Accepted> {
    return this.#transport.request<Accepted>("POST", path, { body: { ...body, background: true }, headers: { "idempotency-key": idempotencyKey } });
  }
}

function parseTurn(text: string): Turn {
  const turn = JSON.parse(text) as Turn;
  if (!turn.waiting_for) return turn;
  const { waiting_for: exact } = parseExact(text) as Turn;
  return { ...turn, waiting_for: { ...turn.waiting_for, calls: withExactArgs(turn.waiting_for.calls, exact) } };
}

/** `crypto.randomUUID` is only there on pages that came over HTTPS or from this machine. */
function newKey(): string {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

const turnPath = (id: string, verb?: string): string => `/v1/turns/${encodeURIComponent(id)}${verb ? `/${verb}` : ""}`;

const branchPath = (conversationId: string, turnId: string, verb: string): string =>
  `/v1/conversations/${encodeURIComponent(conversationId)}/turns/${encodeURIComponent(turnId)}/${verb}`;
