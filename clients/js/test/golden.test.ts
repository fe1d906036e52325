/** The streams that Python writes (tests/golden) are the streams that the client reads: whole, cut anywhere, in any style. */
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";

import { describe, expect, test } from "vitest";

import { Decoder, newTurn, type Part, reduceTurn, SseParser, type StreamEvent, type TurnDisplay } from "../src/index.js";

const folder = join(import.meta.dirname, "../../../tests/golden");
const stories = readdirSync(folder).filter((name) => name.endsWith(".ndjson")).map((name) => name.replace(".ndjson", ""));
const read = (name: string) => readFileSync(join(folder, name), "utf8");

function eventsOf(text: string, cutEvery = Number.POSITIVE_INFINITY): StreamEvent[] {
  const parser = new SseParser();
  const decoder = new Decoder();
  const events: StreamEvent[] = [];
  for (let at = 0; at < text.length; at += cutEvery)
    for (const frame of parser.feed(text.slice(at, at + cutEvery))) events.push(...decoder.read(frame));
  return events;
}

const fold = (events: StreamEvent[]): TurnDisplay => events.reduce(reduceTurn, newTurn("turn_x"));
const words = (parts: readonly Part[], type: "text" | "reasoning") =>
  parts.flatMap((part) => (part.type === type ? [part.text] : [])).join("");

/** The durable events, as the server stored them. */
function stored(story: string): Record<string, unknown>[] {
  return read(`${story}.ndjson`)
    .trim()
    .split("\n")
    .map((line) => JSON.parse(line) as { recorded?: { event: Record<string, unknown> } })
    .flatMap((line) => (line.recorded ? [line.recorded.event] : []));
}

test("there are golden turns to read", () => {
  expect(stories.length).toBeGreaterThanOrEqual(6);
});

describe.each(stories)("%s", (story) => {
  const live = fold(eventsOf(read(`${story}.native.sse`)));

  test("every durable event of the native stream is what the server stored", () => {
    const durable = eventsOf(read(`${story}.native.sse`)).filter((event) => event.type !== "delta");
    expect(JSON.parse(JSON.stringify(durable, (key, value: unknown) => (key === "exactArgs" ? undefined : value)))).toEqual(stored(story));
  });

  test("a replay shows what the live stream showed", () => {
    const replay = fold(eventsOf(read(`${story}.native.replay.sse`)));
    expect(replay.content).toEqual(live.content);
    expect({ ...replay, resets: 0 }).toEqual({ ...live, resets: 0 });
  });

  test("the fold of the events is the content that history returns", () => {
    const result = stored(story).find((event) => event["type"] === "result");
    if (!result) return;
    const withoutContent = eventsOf(read(`${story}.native.sse`)).map((event) => (event.type === "result" ? { ...event, content: null } : event));
    expect(fold(withoutContent).content).toEqual(result["content"]);
  });

  test.each(["native", "openai", "anthropic"])("the %s style reads the same however it is cut", (style) => {
    const text = read(`${story}.${style}.sse`);
    const whole = eventsOf(text);
    for (const every of [1, 7, 64]) expect(eventsOf(text, every)).toEqual(whole);
    expect(eventsOf(text.replaceAll("\n", "\r\n"), 3)).toEqual(whole);
  });

  test.each(["openai", "anthropic"])("the %s style ends with the same words and the same end", (style) => {
    for (const file of [`${story}.${style}.sse`, `${story}.${style}.replay.sse`]) {
      const other = fold(eventsOf(read(file)));
      expect(words(other.content, "text")).toBe(words(live.content, "text"));
      expect(words(other.content, "reasoning")).toBe(words(live.content, "reasoning"));
      expect(other.status).toBe(live.status);
      expect(other.error).toEqual(live.error);
    }
  });
});
