/** Streams that break, and continue at their cursor. The server is a function in place of `fetch`. */
import { readFileSync } from "node:fs";
import { join } from "node:path";

import { describe, expect, test, vi } from "vitest";

import { ConnectionLost, NotFound, type StreamEvent, type StreamOptions, Turnkeep, TurnFailed, TurnReader, TurnStopped, WordReader } from "../src/index.js";

const golden = readFileSync(join(import.meta.dirname, "../../../tests/golden/waits.native.sse"), "utf8");
const frames = golden.split("\n\n").filter((frame) => frame.includes("id: "));
const idOf = (frame: string | undefined) => /^id: (.*)$/m.exec(frame ?? "")?.[1] ?? "";

/** A stream of bytes that ends, or breaks, after these. */
function bytesOf(text: string, ending: "end" | "break" = "end"): Response {
  const body = new ReadableStream<Uint8Array>({
    start(controller) {
      controller.enqueue(new TextEncoder().encode(text));
      if (ending === "end") controller.close();
    },
    pull(controller) {
      controller.error(new TypeError("terminated"));
    },
  });
  return new Response(body, { headers: { "content-type": "text/event-stream" } });
}

/** A server that sends the golden stream after the cursor, and breaks each connection after so many characters. */
function cutting(characters: number) {
  const cursors: (string | null)[] = [];
  const fetch = (_: unknown, init?: RequestInit) => {
    const cursor = (init?.headers as Record<string, string>)["last-event-id"] ?? null;
    cursors.push(cursor);
    const rest = cursor === null ? frames : frames.slice(frames.findIndex((frame) => idOf(frame) === cursor) + 1);
    const whole = `${rest.join("\n\n")}\n\n`;
    // Each connection gets a whole frame at least, else it would never end.
    const first = (rest[0]?.length ?? 0) + 2;
    return Promise.resolve(bytesOf(whole.slice(0, Math.max(first, characters)), "break"));
  };
  return { turnkeep: new Turnkeep({ baseUrl: "http://x", fetch }), cursors };
}

const answering = (...answers: (() => Response | Error)[]) => {
  let count = 0;
  const fetch = () => {
    const answer = (answers[count] ?? answers.at(-1))?.();
    count += 1;
    return answer instanceof Error ? Promise.reject(answer) : Promise.resolve(answer as Response);
  };
  return new Turnkeep({ baseUrl: "http://x", fetch });
};

/** All events, without waiting for the pauses between connections. */
async function read(turnkeep: Turnkeep, options: StreamOptions = {}) {
  const stream = turnkeep.turns.follow("turn_1", { ...options, onConnection: () => setTimeout(() => stream.reconnect()) });
  const events: StreamEvent[] = [];
  for await (const event of stream) events.push(event);
  return { events, stream };
}

const frame = (id: string, event: string, data: object) => `event: ${event}\nid: ${id}\ndata: ${JSON.stringify(data)}\n\n`;
const result = { message_id: "m", message: "Hi.", content: [{ type: "text", text: "Hi." }], usage: null };

describe("a stream", () => {
  test.each([150, 400, 1_000, 3_000])("that breaks after %i characters has each event once", async (characters) => {
    const whole = await read(answering(() => bytesOf(golden)));
    const { turnkeep, cursors } = cutting(characters);
    const cut = await read(turnkeep);
    expect(cut.events).toEqual(whole.events);
    expect(cut.stream.turn).toEqual(whole.stream.turn);
    expect(cursors[0]).toBeNull();
    expect(cursors.length).toBeGreaterThan(1);
  });

  test("that was left in the middle is taken up by the next loop", async () => {
    const { turnkeep, cursors } = cutting(100_000);
    const stream = turnkeep.turns.follow("turn_1");
    for await (const event of stream) if (event.type === "tool_calls") break;
    const left = stream.cursor;
    expect((await stream.settled()).status).toBe("succeeded");
    expect(cursors).toEqual([null, left]);
  });

  test("begins again if the server does not know its cursor", async () => {
    const { events, stream } = await read(
      answering(
        () => bytesOf(frame("1", "delta", { iteration: 1, kind: "text", text: "Lost" })),
        () => Response.json({ code: "invalid_request", detail: "No such cursor." }, { status: 422 }),
        () => bytesOf(frame("1", "result", result)),
      ),
    );
    expect(events.map(({ type }) => type)).toEqual(["delta", "restart", "result"]);
    expect(stream.turn).toMatchObject({ id: "turn_1", status: "succeeded", content: result.content });
  });

  test("ends at once if its cursor is at the end", async () => {
    const { events } = await read(answering(() => new Response(null, { status: 204 })), { after: "9" });
    expect(events).toEqual([]);
  });

  test("of a turn that does not exist is an error", async () => {
    await expect(read(answering(() => Response.json({ code: "not_found", detail: "No." }, { status: 404 })))).rejects.toThrow(NotFound);
  });

  test("gives up when its patience is over, and says where to continue", async () => {
    const turnkeep = answering(() => bytesOf(frame("1", "delta", { iteration: 1, kind: "text", text: "One" })), () => new TypeError("fetch failed"));
    const error = await read(turnkeep, { patienceMs: 10 }).catch((thrown: unknown) => thrown);
    expect(error).toBeInstanceOf(ConnectionLost);
    expect(error).toMatchObject({ turnId: "turn_1", cursor: "1" });
  });

  test("that is closed ends quietly, and one that is aborted throws", async () => {
    const open = () => new Response(new ReadableStream({ start: (controller) => controller.enqueue(new TextEncoder().encode(frame("1", "delta", { iteration: 1, kind: "text", text: "One" }))) }));
    const turnkeep = new Turnkeep({
      baseUrl: "http://x",
      fetch: (_, init) => {
        const response = open();
        const body = response.body?.pipeThrough(new TransformStream(), init?.signal ? { signal: init.signal } : {});
        return Promise.resolve(new Response(body));
      },
    });
    const closed = turnkeep.turns.follow("turn_1");
    for await (const event of closed) if (event.type === "delta") closed.close();
    expect(closed.isOver).toBe(true);
    const stop = new AbortController();
    const aborted = turnkeep.turns.follow("turn_1", { signal: stop.signal });
    await expect(
      (async () => {
        for await (const event of aborted) if (event.type === "delta") stop.abort(new Error("Enough."));
      })(),
    ).rejects.toThrow("Enough.");
  });

  test("raises what the turn ended with", async () => {
    const failing = (code: string) => answering(() => bytesOf(frame("1", "error", { code, message: "Why." })));
    await expect(failing("model_timeout").turns.follow("t").result()).rejects.toThrow(TurnFailed);
    await expect(failing("cancelled").turns.follow("t").result()).rejects.toThrow(TurnStopped);
    await expect(failing("cancelled").turns.follow("t").result()).rejects.toMatchObject({ code: "cancelled", detail: "Why.", turn: { status: "cancelled" } });
    expect((await failing("cancelled").turns.follow("t").settled()).status).toBe("cancelled");
  });

  test("of a question asks first, and knows its ids", async () => {
    const turnkeep = answering(() => Response.json({ turn_id: "turn_1", conversation_id: "conv_1", events_url: "" }, { status: 202 }), () => bytesOf(frame("1", "result", result)));
    const stream = turnkeep.stream("Hello");
    expect([stream.turnId, stream.conversationId]).toEqual([null, null]);
    expect((await stream.result()).content).toEqual(result.content);
    expect([stream.turnId, stream.conversationId]).toEqual(["turn_1", "conv_1"]);
  });

  test("connects again after forty seconds of silence", async () => {
    vi.useFakeTimers();
    const fetch = vi.fn<typeof globalThis.fetch>();
    fetch.mockImplementationOnce(() => Promise.resolve(Response.json({})));
    // A connection that was accepted and never sends a byte.
    fetch.mockImplementationOnce((_, init) => new Promise((__, reject) => init?.signal?.addEventListener("abort", () => reject(new Error("Aborted.")))));
    fetch.mockImplementation(() => Promise.resolve(bytesOf(frame("1", "result", result))));
    const turnkeep = new Turnkeep({ baseUrl: "http://x", fetch });
    await turnkeep.me();
    const reading = turnkeep.turns.follow("turn_1").settled();
    await vi.advanceTimersByTimeAsync(39_000);
    expect(fetch).toHaveBeenCalledTimes(2);
    await vi.advanceTimersByTimeAsync(2_000);
    vi.useRealTimers();
    expect((await reading).status).toBe("succeeded");
    expect(fetch).toHaveBeenCalledTimes(3);
  });
});

test("a reader hands events over in batches, and previews as one", async () => {
  const deltas = ["One ", "two ", "three"].map((text, at) => frame(`0.${at}`, "delta", { iteration: 1, kind: "text", text })).join("");
  const turnkeep = answering(() => bytesOf(deltas + frame("1", "result", result)));
  const batches: string[][] = [];
  const reason = await new Promise((resolve) => {
    new TurnReader("turn_1", turnkeep.turns.follow("turn_1"), {
      onEvents: (events) => batches.push(events.map((event) => (event.type === "delta" ? event.text : event.type))),
      onRestart: () => undefined,
      onEnd: resolve,
    });
  });
  expect(reason).toBe("settled");
  expect(batches.flat()).toEqual(["One two three", "result"]);
});

describe("words", () => {
  const read = (events: StreamEvent[], reader = new WordReader()) => events.reduce((shown, event) => {
    const words = reader.read(event);
    return words ? shown.slice(0, shown.length - words.dropped) + words.text : shown;
  }, "");
  const says = (text: string): StreamEvent => ({ type: "delta", iteration: 1, kind: "text", text });
  const reset: StreamEvent = { type: "reset", attempt: 2, reason: "x" };
  const ended = (message: string): StreamEvent => ({ type: "result", message_id: "m", message, content: null, usage: null });

  test("come once, whether previews were read or missed", () => {
    expect(read([says("One "), says("two."), ended("One two.")])).toBe("One two.");
    expect(read([says("One "), ended("One two.")])).toBe("One two.");
    expect(read([{ type: "tool_calls", iteration: 1, text: "First. ", calls: [] }, ended("Last.")])).toBe("First. Last.");
  });

  test("are not repeated if the model says them again, and replaced if it says others", () => {
    const given: string[] = [];
    const reader = new WordReader();
    for (const event of [says("One "), reset, says("On"), says("e two"), ended("One two.")]) given.push(reader.read(event)?.text ?? "");
    expect(given).toEqual(["One ", "", "", "two", "."]);
    expect(read([says("Wrong"), reset, says("Right"), ended("Right.")])).toBe("Right.");
    expect(read([says("Wrong"), reset, ended("Other.")])).toBe("Other.");
  });

  test("of a stream that begins inside of a text are the previews alone", () => {
    expect(read([says("two."), ended("One two.")], new WordReader("", true))).toBe("two.");
  });
});
