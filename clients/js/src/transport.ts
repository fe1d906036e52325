/** Requests to one server: address, token, repeats and errors. It does not know the routes. */
import { ConnectionLost, errorOf, LimitReached, TurnkeepError } from "./errors.js";
import { writeExact } from "./stream/jsonText.js";

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

export interface ClientOptions {
  /** The address of the server. Without one, the server of the page: its cookie says who the user is. */
  baseUrl?: string;
  /** A user token or a service key, or a function that gets one. The function is called again after a 401. */
  token?: string | (() => string | Promise<string>);
  /** With a service key: act for this user of yours, in this workspace. */
  user?: string;
  workspaceId?: string;
  /**
   * How long requests that may be repeated, and streams, try to reach the server without any progress: 60 s unless you say
   * otherwise. A server that has never answered is given two seconds, because its address is probably wrong.
   */
  patienceMs?: number;
  /** What sends the requests, in place of the global `fetch`. */
  fetch?: typeof globalThis.fetch;
}

export interface RequestOptions {
  /** A value that is sent as JSON, with each JsonNumber as it is written. A Blob and a FormData are sent unchanged. */
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  redirect?: RequestRedirect;
  /** Whether the request may be repeated if its response was lost. Without it: reads, PUT, DELETE, and those with an idempotency key. */
  isSafe?: boolean;
  patienceMs?: number;
  /** Reads the body of the response, if `JSON.parse` does not. */
  parse?: (text: string) => unknown;
}

const PATIENCE_MS = 60_000;
const FIRST_PATIENCE_MS = 2_000;
const FIRST_PAUSE_MS = 300;
const MAX_PAUSE_MS = 5_000;

export class Transport {
  readonly baseUrl: string;
  readonly patienceMs: number;
  #options: ClientOptions;
  #token: Promise<string> | null = null;
  #hasAnswered = false;

  constructor(options: ClientOptions) {
    if (options.baseUrl === undefined && !("location" in globalThis)) throw new TypeError("Outside of a page the client needs `baseUrl`, the address of the server.");
    this.baseUrl = (options.baseUrl ?? "").replace(/\/+$/, "");
    this.patienceMs = options.patienceMs ?? PATIENCE_MS;
    this.#options = options;
  }

  /** The body of the response; throws TurnkeepError. */
  async request<Body>(method: Method, path: string, options: RequestOptions = {}): Promise<Body> {
    const isSafe = options.isSafe ?? (method === "GET" || method === "PUT" || method === "DELETE" || options.headers?.["idempotency-key"] !== undefined);
    return await this.repeat(async () => {
      const response = await this.send(method, path, options);
      if (!response.ok) throw await refusalOf(response);
      return (response.status === 204 ? undefined : await readJson(response, options.parse)) as Body;
    }, { ...options, isSafe });
  }

  /**
   * The response itself, whatever its status. After a 401 the function for the token is called again, and the request is
   * sent once more. Throws ConnectionLost if there is no response.
   */
  async send(method: Method, path: string, options: RequestOptions = {}): Promise<Response> {
    const token = this.#currentToken();
    const response = await this.#fetch(method, path, options, await token);
    if (response.status !== 401 || typeof this.#options.token !== "function") return response;
    await response.body?.cancel();
    // Another request may have asked for a new one meanwhile.
    if (this.#token === token) this.#token = null;
    return await this.#fetch(method, path, options, await this.#currentToken());
  }

  /** Repeat a request while the server cannot be reached or refuses for its load, for as long as the patience lasts. */
  async repeat<Result>(request: () => Promise<Result>, { isSafe = true, signal, patienceMs = this.patienceMs }: Pick<RequestOptions, "isSafe" | "signal" | "patienceMs"> = {}): Promise<Result> {
    const begin = Date.now();
    for (const pauses = new Pauses(); ; ) {
      try {
        return await request();
      } catch (error) {
        const ms = pauses.next(error);
        if (!isPassing(error, isSafe) || Date.now() - begin + ms > this.patienceNow(patienceMs)) throw error;
        await pause(ms, signal);
      }
    }
  }

  /** How much of this patience a server gets that has perhaps never answered. */
  patienceNow(patienceMs: number): number {
    return this.#hasAnswered ? patienceMs : Math.min(patienceMs, FIRST_PATIENCE_MS);
  }

  #currentToken(): Promise<string> | null {
    const { token } = this.#options;
    if (token === undefined) return null;
    if (this.#token === null) {
      const asked = Promise.resolve(typeof token === "function" ? token() : token);
      this.#token = asked;
      // A failed attempt is not kept: the next request asks again.
      asked.catch(() => {
        if (this.#token === asked) this.#token = null;
      });
    }
    return this.#token;
  }

  async #fetch(method: Method, path: string, { body, headers: more, signal, redirect = "error" }: RequestOptions, token: string | null): Promise<Response> {
    const { user, workspaceId, fetch = globalThis.fetch } = this.#options;
    const headers: Record<string, string> = { accept: "application/json", ...more };
    if (token !== null) headers["authorization"] = `Bearer ${token}`;
    if (user !== undefined) headers["turnkeep-user"] = user;
    if (workspaceId !== undefined) headers["turnkeep-workspace"] = workspaceId;
    // A token says who the user is, so no cookie shall.
    const init: RequestInit = { method, headers, redirect, cache: "no-store", credentials: token === null ? "same-origin" : "omit" };
    if (body instanceof Blob || body instanceof FormData) init.body = body;
    else if (body !== undefined) {
      headers["content-type"] = "application/json";
      init.body = writeExact(body);
    }
    if (signal) init.signal = signal;
    try {
      const response = await fetch(this.baseUrl + path, init);
      this.#hasAnswered = true;
      return response;
    } catch (error) {
      if (signal?.aborted) throw error;
      throw new ConnectionLost();
    }
  }
}

/** The error of a response that is not a success. */
export async function refusalOf(response: Response): Promise<TurnkeepError> {
  return errorOf(response.status, await response.text().catch(() => ""), response.headers);
}

async function readJson(response: Response, parse: (text: string) => unknown = JSON.parse): Promise<unknown> {
  let text: string;
  try {
    text = await response.text();
  } catch {
    throw new ConnectionLost("The connection broke before the whole response was there.");
  }
  try {
    return parse(text);
  } catch {
    throw errorOf(response.status, "", response.headers);
  }
}

/** Whether a repeat may succeed. A refusal for load changed nothing; a lost response may have. */
function isPassing(error: unknown, isSafe: boolean): boolean {
  if (!(error instanceof TurnkeepError)) return false;
  if (error.status === 503 || error.code === "rate_limited") return true;
  return isSafe && (error instanceof ConnectionLost || error.status === 502 || error.status === 504);
}

/** Growing pauses between attempts, or those that the server asks for. */
export class Pauses {
  #ms = FIRST_PAUSE_MS;

  next(error?: unknown): number {
    const ms = this.#ms * (0.75 + Math.random() / 2);
    this.#ms = Math.min(this.#ms * 2, MAX_PAUSE_MS);
    return error instanceof LimitReached && error.retryAfterSeconds !== null ? Math.max(ms, error.retryAfterSeconds * 1000) : ms;
  }

  /** There was progress: the next pause is short again. */
  reset(): void {
    this.#ms = FIRST_PAUSE_MS;
  }
}

/** Wait; throws the reason of the signal if it is aborted. */
export function pause(ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason as Error);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, ms);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}

/** A path with a query, without parameters that are null or empty. */
export function withQuery(path: string, query: Readonly<Record<string, unknown>> = {}): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]): [string, string] => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}
