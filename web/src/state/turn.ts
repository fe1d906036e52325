/** The display of a turn: a fold of its events, the same that the server stores with the final message. */
import type { Call, StreamEvent } from "../stream/events";
import type { FilePart, Finish, Part, Source, StepPart, Usage } from "../wire/types";

export type TurnStatus = "queued" | "running" | "succeeded" | "failed" | "cancelled";

export interface TurnDisplay {
  readonly id: string;
  readonly status: TurnStatus;
  readonly user_message_id: string | null;
  readonly message_id: string | null;
  /** The parts that are recorded, in order. */
  readonly content: readonly Part[];
  readonly sources: readonly Source[];
  /** The preview of the present iteration. The next event replaces or drops it. */
  readonly text: string;
  readonly reasoning: string;
  /** Tool calls that have no step yet. */
  readonly planned: readonly Call[];
  readonly usage: Usage | null;
  readonly error: { readonly code: string; readonly message: string } | null;
  readonly finish: Finish | null;
  /** How often another worker took over, or the provider started again. */
  readonly resets: number;
}

export function newTurn(id: string, status: TurnStatus = "running"): TurnDisplay {
  return {
    id,
    status,
    user_message_id: null,
    message_id: null,
    content: [],
    sources: [],
    text: "",
    reasoning: "",
    planned: [],
    usage: null,
    error: null,
    finish: null,
    resets: 0,
  };
}

export const isSettled = (turn: TurnDisplay): boolean => turn.status !== "queued" && turn.status !== "running";

export function reduceTurn(turn: TurnDisplay, event: StreamEvent): TurnDisplay {
  if (isSettled(turn)) return turn;
  switch (event.type) {
    case "turn":
      return { ...turn, status: event.status, user_message_id: event.user_message_id };
    case "delta":
      return event.kind === "text"
        ? { ...turn, text: turn.text + event.text }
        : { ...turn, reasoning: turn.reasoning + event.text };
    case "tool_calls": {
      const content = [...turn.content, ...spoken(event.text, event.reasoning ?? "")];
      return { ...turn, content, text: "", reasoning: "", planned: event.calls };
    }
    case "step":
      return {
        ...turn,
        content: withStep(turn.content, event),
        planned: turn.planned.filter((call) => call.id !== event.id),
      };
    case "sources":
      return { ...turn, sources: withSources(turn.sources, event.sources) };
    case "files": {
      const parts = event.files.map((file): FilePart => ({ type: "file", file_id: file.id, name: file.name, mime_type: file.mime_type, size: file.size }));
      return { ...turn, content: [...turn.content, ...parts] };
    }
    case "reset":
      return { ...turn, text: "", reasoning: "", resets: turn.resets + 1 };
    case "result":
      return {
        ...turn,
        status: "succeeded",
        content: event.content ?? [...turn.content, ...spoken(event.message, turn.reasoning)],
        message_id: event.message_id,
        text: "",
        reasoning: "",
        planned: [],
        usage: event.usage,
        finish: event.finish ?? "complete",
      };
    case "error":
      return {
        ...turn,
        status: event.code === "cancelled" ? "cancelled" : "failed",
        // A stopped answer was recorded before this event. The rest of the preview would not be there after a reload either.
        message_id: event.message_id ?? null,
        content: event.content ?? turn.content,
        text: "",
        reasoning: "",
        planned: [],
        error: { code: event.code, message: event.message },
      };
    default:
      return event satisfies never;
  }
}

/** The parts to draw now: the recorded ones, then the preview. */
export function shownParts(turn: TurnDisplay): readonly Part[] {
  const speaking = spoken(turn.text, turn.reasoning);
  return speaking.length ? [...turn.content, ...speaking] : turn.content;
}

/** All parts of an ended turn, also where its message was cut. */
export function wholeContent(turnId: string, events: readonly StreamEvent[]): readonly Part[] {
  const content = events.reduce(reduceTurn, newTurn(turnId)).content;
  const before = events.filter((event) => event.type !== "result" && event.type !== "error");
  const recorded = before.reduce(reduceTurn, newTurn(turnId)).content;
  const last = events.at(-1);
  if (last?.type !== "result") return recorded;
  // The words of the last iteration come with the result alone, and are never cut.
  const words = content.slice(-2).filter((part) => part.type === "reasoning" || (part.type === "text" && part.text === last.message));
  return [...recorded, ...words];
}

/** What the turn waits for: its place in the queue, the first word, tools, or more words. */
export function waitingFor(turn: TurnDisplay): "queue" | "first_word" | "tools" | "words" | null {
  if (turn.status === "queued") return "queue";
  if (turn.status !== "running") return null;
  if (turn.text) return "words";
  const last = turn.content.at(-1);
  if (turn.planned.length || (last?.type === "step" && !turn.reasoning)) return "tools";
  return "first_word";
}

function spoken(text: string, reasoning: string): Part[] {
  const parts: Part[] = [];
  if (reasoning) parts.push({ type: "reasoning", text: reasoning });
  if (text) parts.push({ type: "text", text });
  return parts;
}

/** A step keeps its place. A later event of it replaces its fields; fields that the event leaves out stay. */
function withStep(content: readonly Part[], event: Extract<StreamEvent, { type: "step" }>): readonly Part[] {
  const { ts: _, ...line } = event;
  const step: StepPart = line;
  const place = content.findIndex((part) => part.type === "step" && part.id === step.id);
  if (place < 0) return [...content, step];
  return content.map((part, at) => (at === place ? { ...(part as StepPart), ...step } : part));
}

function withSources(known: readonly Source[], more: readonly Source[]): readonly Source[] {
  const seen = new Set(known.map((source) => JSON.stringify(source)));
  return [...known, ...more.filter((source) => !seen.has(JSON.stringify(source)) && seen.add(JSON.stringify(source)))];
}
