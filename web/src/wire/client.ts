/** JSON over HTTP: one function, one error. Knows nothing of what is asked for. */

/** What the server refused, in its own words; `status` 0: it did not answer at all. */
export class ApiError extends Error {
  readonly status: number;
  readonly code: string;
  readonly problem: Readonly<Record<string, unknown>>;

  constructor(status: number, code: string, detail: string, problem: Readonly<Record<string, unknown>> = {}) {
    super(detail);
    this.name = "ApiError";
    this.status = status;
    this.code = code;
    this.problem = problem;
  }

  /** Whether asking again may help: nobody answered, or they were busy with themselves. */
  get isPassing(): boolean {
    return this.status === 0 || this.status === 502 || this.status === 503 || this.status === 504;
  }
}

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

export interface Asked {
  /** A value that is sent as JSON, or a Blob that is sent as it is, under its own type. */
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
}

/** The answer of a route, or ApiError. */
export async function request<Answer>(method: Method, path: string, asked: Asked = {}): Promise<Answer> {
  const response = await send(method, path, asked);
  if (!response.ok) throw await problemOf(response);
  return (response.status === 204 ? undefined : await response.json()) as Answer;
}

/** The bare response, for streams. Raises ApiError only where nobody answered. */
export async function send(method: Method, path: string, asked: Asked = {}): Promise<Response> {
  const headers: Record<string, string> = { accept: "application/json", ...asked.headers };
  const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store", redirect: "error" };
  if (asked.body instanceof Blob) init.body = asked.body;
  else if (asked.body !== undefined) {
    headers["content-type"] = "application/json";
    init.body = JSON.stringify(asked.body);
  }
  if (asked.signal) init.signal = asked.signal;
  try {
    return await fetch(path, init);
  } catch (error) {
    if (asked.signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The server cannot be reached.");
  }
}

export async function problemOf(response: Response): Promise<ApiError> {
  return asProblem(response.status, await response.text().catch(() => ""));
}

export function asProblem(status: number, text: string): ApiError {
  try {
    const problem = JSON.parse(text) as Record<string, unknown>;
    const detail = typeof problem["detail"] === "string" ? problem["detail"] : `The server answered ${status}.`;
    return new ApiError(status, typeof problem["code"] === "string" ? problem["code"] : "unknown", detail, problem);
  } catch {
    return new ApiError(status, "unknown", `The server answered ${status}.`);
  }
}

/** A path with a query, leaving out what is null or empty. */
export function withQuery(path: string, query: Record<string, string | number | null | undefined>): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]): [string, string] => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}
