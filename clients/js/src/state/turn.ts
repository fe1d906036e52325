/** The display of a turn: a fold of its events, the same that the server stores with the final message. */
import type { Call, DecidedCall, StreamEvent } from "../stream/events.js";
import type { FilePart, Finish, Part, Source, StepPart, Usage } from "../wire/types.js";

export type TurnStatus = "queued" | "running" | "waiting" | "succeeded" | "failed" | "cancelled";

/** What a turn waits for. No worker holds it meanwhile. */
export interface TurnWait {
  /** Calls about which a person decides. */
  readonly approvals: readonly Call[];
  /** Calls that the app which asked must answer. */
  readonly clientCalls: readonly Call[];
  /** Decisions that hold, while the turn waits for others. */
  readonly decided: readonly DecidedCall[];
  readonly expires_at: number;
}

/** Words that the user added to a turn, and how many parts of its answer come before them. */
export interface SteeredWords {
  readonly message_id: string;
  readonly text: string;
  readonly at: number;
}

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
  readonly wait: TurnWait | null;
  readonly steered: readonly SteeredWords[];
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
    wait: null,
    steered: [],
    usage: null,
    error: null,
    finish: null,
    resets: 0,
  };
}

export const isSettled = (turn: TurnDisplay): boolean => !isOpen(turn.status);

/** Whether a turn, or the turn of a message, has not ended. */
export const isOpen = (status: TurnStatus): boolean => status === "queued" || status === "running" || status === "waiting";

export function reduceTurn(turn: TurnDisplay, event: StreamEvent): TurnDisplay {
  if (isSettled(turn)) return turn;
  switch (event.type) {
    case "turn":
      // A turn that waited says it again when it goes on.
      return { ...turn, status: event.status, user_message_id: event.user_message_id, wait: null };
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
    case "approval":
      return { ...turn, status: "waiting", wait: { clientCalls: turn.wait?.clientCalls ?? [], decided: [], approvals: event.calls, expires_at: event.expires_at } };
    case "client_calls":
      return { ...turn, status: "waiting", wait: { approvals: turn.wait?.approvals ?? [], decided: [], clientCalls: event.calls, expires_at: event.expires_at } };
    case "decided":
      return turn.wait ? { ...turn, wait: { ...turn.wait, decided: [...turn.wait.decided, ...event.decisions] } } : turn;
    case "steered": {
      const words: SteeredWords = { message_id: event.message_id, text: event.message, at: turn.content.length };
      return { ...turn, steered: [...turn.steered, words] };
    }
    case "result":
      return {
        ...turn,
        wait: null,
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
        wait: null,
        status: event.code === "cancelled" ? "cancelled" : "failed",
        // A stopped answer was recorded before this event. The rest of the preview would not be there after a reload either.
        message_id: event.message_id ?? null,
        content: event.content ?? turn.content,
        text: "",
        reasoning: "",
        planned: [],
        error: { code: event.code, message: event.message },
      };
    case "restart":
      return newTurn(turn.id);
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

/** What the turn waits for: its place in the queue, a person, an app, the first word, tools, or more words. */
export function waitingFor(turn: TurnDisplay): "queue" | "approval" | "client_tools" | "first_word" | "tools" | "words" | null {
  if (turn.status === "queued") return "queue";
  if (turn.wait) return turn.wait.approvals.length ? "approval" : "client_tools";
  if (turn.status !== "running") return null;
  if (turn.text) return "words";
  return turn.planned.length || turn.content.some(isRunning) ? "tools" : "first_word";
}

/** Whether the part is a step that has not ended. */
export const isRunning = (part: Part): boolean => part.type === "step" && part.status === "running";

function spoken(text: string, reasoning: string): Part[] {
  const parts: Part[] = [];
  if (reasoning) parts.push({ type: "reasoning", text: reasoning });
  if (text) parts.push({ type: "text", text });
  return parts;
}

/** A step keeps its place. A later event of it replaces its fields; fields that the event leaves out stay. */
function withStep(content: readonly Part[], event: Extract<StreamEvent, { type: "step" }>): readonly Part[] {
  const { ts, ...line } = event;
  const step: StepPart = line.status === "running" && ts !== undefined ? { ...line, startedAt: ts } : line;
  const place = content.findIndex((part) => part.type === "step" && part.id === step.id);
  if (place < 0) return [...content, step];
  // A step that shows its output while it runs says so again and again: it began with the first of these events.
  const { startedAt, ...before } = content[place] as StepPart;
  const began = step.status === "running" && startedAt !== undefined ? { startedAt } : {};
  return content.map((part, at) => (at === place ? { ...before, ...step, ...began } : part));
}

function withSources(known: readonly Source[], more: readonly Source[]): readonly Source[] {
  const seen = new Set(known.map((source) => JSON.stringify(source)));
  return [...known, ...more.filter((source) => !seen.has(JSON.stringify(source)) && seen.add(JSON.stringify(source)))];
}
