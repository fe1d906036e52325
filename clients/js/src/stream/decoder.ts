/**
 * Frames → events, in one loop over three styles: our own, OpenAI-style chunks, and Anthropic-style content-block
 * deltas with `event: tool_calls`. No I/O. An unreadable frame yields no event, and the stream goes on.
 */
import { parseExact, withExactArgs } from "./jsonText.js";
import type { Usage } from "../wire/types.js";
import type { Call, StreamEvent } from "./events.js";
import type { Frame } from "./sse.js";

type Json = Record<string, unknown>;

const NATIVE = new Set(["turn", "delta", "tool_calls", "step", "sources", "files", "reset", "approval", "client_calls", "decided", "steered", "result", "error"]);

export class Decoder {
  #iteration = 1;
  #text = "";
  #reasoning = "";
  #calls: { id: string; name: string; json: string }[] = [];
  #blocks = new Map<number, { id: string; name: string; json: string }>();
  #usage: Usage | null = null;
  #isOver = false;

  /** The events of this frame; usually one. */
  read(frame: Frame): StreamEvent[] {
    if (this.#isOver) return [];
    const events = this.#read(frame);
    this.#isOver = events.some((event) => event.type === "result" || event.type === "error");
    return events;
  }

  #read(frame: Frame): StreamEvent[] {
    if (frame.data.trim() === "[DONE]") return this.#finish();
    const data = parsed(frame.data);
    if (data === null) return [];
    if (isObject(data["error"])) return [failure(data["error"])];
    if (Array.isArray(data["choices"]) && frame.event === "message") return this.#chunk(data);
    if (NATIVE.has(frame.event)) return [this.#native(frame, data)];
    return this.#contentBlock(data);
  }

  #native(frame: Frame, data: Json): StreamEvent {
    const event = { ...data, type: frame.event } as StreamEvent;
    if (event.type === "approval") return { ...event, calls: withExactArgs(event.calls, parseExact(frame.data)) };
    if (event.type === "tool_calls") {
      this.#iteration = event.iteration + 1;
      this.#forget();
      return event;
    }
    if (event.type === "reset") {
      const drop = isObject(data["drop"]) ? data["drop"] : null;
      this.#text = drop ? dropped(this.#text, drop["text"]) : "";
      this.#reasoning = drop ? dropped(this.#reasoning, drop["reasoning"]) : "";
    }
    return event;
  }

  // --- OpenAI-style chunks

  #chunk(data: Json): StreamEvent[] {
    if (isObject(data["usage"])) this.#usage = usageOf(data["usage"], "prompt_tokens", "completion_tokens");
    const choice = (data["choices"] as unknown[])[0];
    if (!isObject(choice)) return [];
    const delta = isObject(choice["delta"]) ? choice["delta"] : {};
    const events = [
      ...this.#spoken("reasoning", textOf(delta["reasoning_content"] ?? delta["reasoning"])),
      ...this.#spoken("text", textOf(delta["content"])),
    ];
    if (Array.isArray(delta["tool_calls"])) this.#planned(delta["tool_calls"]);
    if (choice["finish_reason"] === "tool_calls") events.push(this.#iterationEnd());
    return events;
  }

  #planned(pieces: unknown[]): void {
    for (const piece of pieces) {
      if (!isObject(piece)) continue;
      const place = typeof piece["index"] === "number" ? piece["index"] : this.#calls.length;
      const call = (this.#calls[place] ??= { id: "", name: "", json: "" });
      const named = isObject(piece["function"]) ? piece["function"] : {};
      call.id += textOf(piece["id"]);
      call.name += textOf(named["name"]);
      call.json += textOf(named["arguments"]);
    }
  }

  // --- Anthropic-style content blocks

  #contentBlock(data: Json): StreamEvent[] {
    const place = typeof data["index"] === "number" ? data["index"] : 0;
    switch (data["type"]) {
      case "content_block_start": {
        const block = isObject(data["content_block"]) ? data["content_block"] : {};
        if (block["type"] === "tool_use")
          this.#blocks.set(place, { id: textOf(block["id"]), name: textOf(block["name"]), json: "" });
        return [...this.#spoken("reasoning", textOf(block["thinking"])), ...this.#spoken("text", textOf(block["text"]))];
      }
      case "content_block_delta": {
        const delta = isObject(data["delta"]) ? data["delta"] : {};
        const block = this.#blocks.get(place);
        if (block) block.json += textOf(delta["partial_json"]);
        return [...this.#spoken("reasoning", textOf(delta["thinking"])), ...this.#spoken("text", textOf(delta["text"]))];
      }
      case "content_block_stop": {
        const block = this.#blocks.get(place);
        if (block) this.#calls.push(block);
        this.#blocks.delete(place);
        return [];
      }
      case "message_delta": {
        if (isObject(data["usage"])) this.#usage = usageOf(data["usage"], "input_tokens", "output_tokens");
        const delta = isObject(data["delta"]) ? data["delta"] : {};
        return delta["stop_reason"] === "tool_use" ? [this.#iterationEnd()] : [];
      }
      case "message_stop":
        return this.#finish();
      default:
        return [];
    }
  }

  // --- both

  #spoken(kind: "text" | "reasoning", text: string): StreamEvent[] {
    if (!text) return [];
    if (kind === "text") this.#text += text;
    else this.#reasoning += text;
    return [{ type: "delta", iteration: this.#iteration, kind, text }];
  }

  #iterationEnd(): StreamEvent {
    const calls = this.#calls.filter(Boolean).map((call): Call => ({ id: call.id, name: call.name, args: parsed(call.json) ?? {} }));
    const event: StreamEvent = { type: "tool_calls", iteration: this.#iteration, text: this.#text, calls };
    if (this.#reasoning) event.reasoning = this.#reasoning;
    this.#iteration += 1;
    this.#forget();
    return event;
  }

  #finish(): StreamEvent[] {
    return [{ type: "result", message_id: null, message: this.#text, content: null, usage: this.#usage }];
  }

  #forget(): void {
    this.#text = "";
    this.#reasoning = "";
    this.#calls = [];
    this.#blocks.clear();
  }
}

function parsed(text: string): Json | null {
  try {
    const value: unknown = JSON.parse(text);
    return isObject(value) ? value : null;
  } catch {
    return null;
  }
}

function isObject(value: unknown): value is Json {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

function textOf(value: unknown): string {
  return typeof value === "string" ? value : "";
}

/** Counts on the wire are code points. JavaScript counts UTF-16 units. */
function dropped(text: string, count: unknown): string {
  return typeof count === "number" && count > 0 ? Array.from(text).slice(0, -count).join("") : text;
}

function failure(error: Json): StreamEvent {
  const code = textOf(error["code"]) || textOf(error["type"]) || "provider_error";
  return { type: "error", code, message: textOf(error["message"]) || "The answer failed." };
}

function usageOf(usage: Json, input: string, output: string): Usage {
  const count = (value: unknown) => (typeof value === "number" ? value : 0);
  const details = isObject(usage["prompt_tokens_details"]) ? usage["prompt_tokens_details"] : {};
  return {
    input_tokens: count(usage[input]),
    output_tokens: count(usage[output]),
    cache_read_tokens: count(usage["cache_read_input_tokens"] ?? details["cached_tokens"]),
    cache_write_tokens: count(usage["cache_creation_input_tokens"]),
  };
}
