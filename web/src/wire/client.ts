/** JSON over HTTP: one function, one error. It does not know the routes. */

/** A request that the server refused, with the server's text. `status` 0: the server did not answer. */
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

}

export type Method = "GET" | "POST" | "PUT" | "PATCH" | "DELETE";

export interface RequestOptions {
  /** A value that is sent as JSON, or a Blob that is sent unchanged with its own type. */
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  redirect?: RequestRedirect;
}

/** The body of the response; throws ApiError. */
export async function request<Body>(method: Method, path: string, options: RequestOptions = {}): Promise<Body> {
  const response = await send(method, path, options);
  if (!response.ok) throw await problemOf(response);
  return (response.status === 204 ? undefined : await response.json()) as Body;
}

/** The response itself, for streams. Throws ApiError only if the server does not answer. */
export async function send(method: Method, path: string, options: RequestOptions = {}): Promise<Response> {
  const headers: Record<string, string> = { accept: "application/json", ...options.headers };
  const init: RequestInit = { method, headers, credentials: "same-origin", cache: "no-store", redirect: options.redirect ?? "error" };
  if (options.body instanceof Blob) init.body = options.body;
  else if (options.body !== undefined) {
    headers["content-type"] = "application/json";
    init.body = JSON.stringify(options.body);
  }
  if (options.signal) init.signal = options.signal;
  try {
    return await fetch(path, init);
  } catch (error) {
    if (options.signal?.aborted) throw error;
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

/** A path with a query, without parameters that are null or empty. */
export function withQuery(path: string, query: Record<string, string | number | null | undefined>): string {
  const given = Object.entries(query).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const text = new URLSearchParams(given.map(([name, value]): [string, string] => [name, String(value)])).toString();
  return text ? `${path}?${text}` : path;
}
