/** Requests of the client: tokens, repeats, errors, paths. The server is a function in place of `fetch`. */
import { describe, expect, test, vi } from "vitest";

import { AlreadyDecided, type ClientOptions, ConnectionLost, ConversationBusy, Defect, Forbidden, InvalidRequest, LimitReached, NotFound, TooLarge, Turnkeep, TurnkeepError, Unauthorized, Unavailable } from "../src/index.js";

type Answer = Response | Error;

/** A client, and the requests that it sends. Each request gets the next answer, and the last one stays. */
function clientOf(answers: (() => Answer)[], options: ClientOptions = {}) {
  const requests: { method: string; url: string; headers: Record<string, string>; body: unknown; init: RequestInit }[] = [];
  const fetch = (url: RequestInfo | URL, init: RequestInit = {}) => {
    requests.push({ method: init.method ?? "GET", url: String(url), headers: init.headers as Record<string, string>, body: init.body, init });
    const answer = (answers[requests.length - 1] ?? answers.at(-1))?.();
    return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer as Response);
  };
  return { turnkeep: new Turnkeep({ baseUrl: "https://chat.example.com/", fetch, ...options }), requests };
}

const json = (value: unknown, status = 200, headers: Record<string, string> = {}) => () => Response.json(value, { status, headers });
const problem = (status: number, code: string, more: object = {}, headers: Record<string, string> = {}) => json({ code, detail: `The text of ${code}.`, ...more }, status, headers);
const broken = () => new TypeError("fetch failed");

describe("a token", () => {
  test("is asked for once, and again after a 401", async () => {
    const token = vi.fn<() => Promise<string>>().mockResolvedValueOnce("old").mockResolvedValueOnce("new");
    const { turnkeep, requests } = clientOf([json({}), problem(401, "unauthorized"), json({ user_id: "user_1" })], { token });
    await turnkeep.me();
    expect(await turnkeep.me()).toEqual({ user_id: "user_1" });
    expect(requests.map(({ headers }) => headers["authorization"])).toEqual(["Bearer old", "Bearer old", "Bearer new"]);
  });

  test("is asked for once by requests that are refused together", async () => {
    let count = 0;
    const fetch = (_: unknown, init?: RequestInit) =>
      Promise.resolve((init?.headers as Record<string, string>)["authorization"] === "Bearer 1" ? problem(401, "unauthorized")() : json({})());
    const turnkeep = new Turnkeep({ baseUrl: "http://x", token: () => String((count += 1)), fetch });
    await Promise.all([turnkeep.me(), turnkeep.me(), turnkeep.me()]);
    expect(count).toBe(2);
  });

  test("that the server does not take either is an error, without a third attempt", async () => {
    const { turnkeep, requests } = clientOf([problem(401, "unauthorized")], { token: () => "wrong" });
    await expect(turnkeep.me()).rejects.toThrow(Unauthorized);
    expect(requests).toHaveLength(2);
  });

  test("that cannot be got fails the request, and is asked for again by the next one", async () => {
    const token = vi.fn<() => Promise<string>>().mockRejectedValueOnce(new Error("No token.")).mockResolvedValue("t");
    const { turnkeep } = clientOf([json({})], { token });
    await expect(turnkeep.me()).rejects.toThrow("No token.");
    await turnkeep.me();
  });

  test("excludes cookies, which only the page's own server gets", async () => {
    const { turnkeep, requests } = clientOf([json({})], { token: "key", user: "ada", workspaceId: "ws_1" });
    await turnkeep.me();
    expect(requests[0]?.init.credentials).toBe("omit");
    expect(requests[0]?.headers).toMatchObject({ authorization: "Bearer key", "turnkeep-user": "ada", "turnkeep-workspace": "ws_1" });
    const page = clientOf([json({})], { baseUrl: "" });
    await page.turnkeep.me();
    expect(page.requests[0]).toMatchObject({ url: "/v1/me", init: { credentials: "same-origin" } });
    expect(page.requests[0]?.headers).not.toHaveProperty("authorization");
  });
});

describe("a request", () => {
  test("of any route has its names and its query", async () => {
    const { turnkeep, requests } = clientOf([json({ data: [], next_cursor: null })]);
    await turnkeep.request("GET", "/v1/tables/{table_id}/rows", { params: { table_id: "a/b" }, query: { q: "x y", cursor: null, limit: 2 } });
    expect(requests[0]?.url).toBe("https://chat.example.com/v1/tables/a%2Fb/rows?q=x+y&limit=2");
  });

  test("that reads is repeated until the server answers", async () => {
    const { turnkeep, requests } = clientOf([broken, problem(503, "unavailable"), json({ user_id: "user_1" })]);
    expect(await turnkeep.me()).toEqual({ user_id: "user_1" });
    expect(requests).toHaveLength(3);
  });

  test("that asks is repeated with the same key", async () => {
    const { turnkeep, requests } = clientOf([broken, json({ turn_id: "t", conversation_id: "c", events_url: "" }, 202)]);
    await turnkeep.turns.start("Hello");
    const [first, second] = requests.map(({ headers }) => headers["idempotency-key"]);
    expect(first).toMatch(/^[0-9a-f]{32}$/);
    expect(second).toBe(first);
    expect(JSON.parse(String(requests[1]?.body))).toEqual({ message: "Hello", background: true });
  });

  test("that creates is not repeated, unless the server refused it for its load", async () => {
    const lost = clientOf([broken, json({})]);
    await expect(lost.turnkeep.conversations.create({ title: "New" })).rejects.toThrow(ConnectionLost);
    const refused = clientOf([problem(429, "rate_limited", {}, { "retry-after": "0" }), json({ id: "conv_1" })]);
    expect(await refused.turnkeep.conversations.create({ title: "New" })).toEqual({ id: "conv_1" });
  });

  test("is not repeated without patience, and for two seconds at an address that never answered", async () => {
    const hasty = clientOf([broken], { patienceMs: 0 });
    await expect(hasty.turnkeep.me()).rejects.toThrow(ConnectionLost);
    expect(hasty.requests).toHaveLength(1);
    vi.useFakeTimers();
    const { turnkeep } = clientOf([broken]);
    const begin = Date.now();
    const asked = expect(turnkeep.me()).rejects.toThrow(ConnectionLost);
    await vi.runAllTimersAsync();
    await asked;
    expect(Date.now() - begin).toBeLessThanOrEqual(2_000);
    vi.useRealTimers();
  });

  test("that is aborted says so", async () => {
    const { turnkeep } = clientOf([() => new DOMException("Aborted", "AbortError")]);
    await expect(turnkeep.conversations.get("c", { signal: AbortSignal.abort() })).rejects.toThrow("Aborted");
  });

  test("outside of a page needs an address", () => {
    expect(() => new Turnkeep()).toThrow("baseUrl");
  });
});

describe("an error", () => {
  test.each([
    [400, "invalid_request", InvalidRequest],
    [422, "too_many_files", InvalidRequest],
    [401, "unauthorized", Unauthorized],
    [403, "out_of_scope", Forbidden],
    [404, "not_found", NotFound],
    [409, "conversation_busy", ConversationBusy],
    [409, "already_decided", AlreadyDecided],
    [413, "file_too_large", TooLarge],
    [415, "unsupported_media_type", TurnkeepError],
    [429, "quota_exceeded", LimitReached],
    [502, "unknown", Unavailable],
    [500, "internal", Defect],
  ] as const)("%i %s has a class", async (status, code, kind) => {
    const { turnkeep } = clientOf([problem(status, code, {}, { "x-request-id": "request-1" })], { patienceMs: 0 });
    const error = await turnkeep.me().catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(kind);
    expect(error).toMatchObject({ name: kind.name, status, code, detail: `The text of ${code}.`, message: `The text of ${code}.`, requestId: "request-1" });
  });

  test("has what the server says beside its text", async () => {
    const { turnkeep } = clientOf([problem(409, "conversation_busy", { turn_id: "turn_1", waiting_for: "approval" }), problem(409, "already_decided", { decision: "allow" }), problem(429, "quota_exceeded")]);
    await expect(turnkeep.me()).rejects.toMatchObject({ turnId: "turn_1", waitingFor: "approval" });
    await expect(turnkeep.me()).rejects.toMatchObject({ decision: "allow" });
    await expect(turnkeep.me()).rejects.toMatchObject({ retryAfterSeconds: null });
  });

  test("of a proxy has a text too", async () => {
    const { turnkeep } = clientOf([() => new Response("<html>", { status: 502 })], { patienceMs: 0 });
    await expect(turnkeep.me()).rejects.toMatchObject({ status: 502, code: "unknown", detail: "The server answered 502." });
  });

  test("is raised for a page in place of JSON", async () => {
    const { turnkeep } = clientOf([() => new Response("<html>", { status: 200 })]);
    await expect(turnkeep.me()).rejects.toThrow(TurnkeepError);
  });
});

test("a list fetches its pages as it is read", async () => {
  const { turnkeep, requests } = clientOf([json({ data: [{ id: "a" }, { id: "b" }], next_cursor: "c1" }), json({ data: [{ id: "c" }], next_cursor: null })]);
  const ids: string[] = [];
  for await (const { id } of turnkeep.conversations.list({ q: "cat" })) ids.push(id);
  expect(ids).toEqual(["a", "b", "c"]);
  expect(requests.map(({ url }) => new URL(url).search)).toEqual(["?q=cat", "?q=cat&cursor=c1"]);
});
