/** The events of a turn, independent of the style of the stream. */
import type { Finish, Part, Source, StepPart, StoredFile, Usage } from "../wire/types.js";

export interface Call {
  id: string;
  name: string;
  args: unknown;
  /** The arguments of a call that a person decides about, with a JsonNumber for each number, which rounds nothing. */
  exactArgs?: unknown;
}

/** A decision that holds. */
export interface DecidedCall {
  call_id: string;
  decision: "allow" | "deny";
  /** Who decided, as the server names them. */
  by: string;
  at: number;
  args?: unknown;
  reason?: string;
}

export type StreamEvent =
  | { type: "turn"; turn_id: string; conversation_id: string; user_message_id: string; status: "queued" | "running"; attempt: number }
  | { type: "delta"; iteration: number; kind: "text" | "reasoning"; text: string }
  | { type: "tool_calls"; iteration: number; text: string; reasoning?: string; calls: Call[] }
  | (Omit<StepPart, "type"> & { type: "step"; ts?: number })
  | { type: "sources"; sources: Source[] }
  | { type: "files"; files: StoredFile[] }
  | { type: "reset"; attempt: number; reason: string; at?: number }
  /** The turn waits until a person has decided about these calls, or the time is over. */
  | { type: "approval"; calls: Call[]; expires_at: number; at?: number }
  /** The turn waits for results of these calls from the app that asked. */
  | { type: "client_calls"; calls: Call[]; expires_at: number; at?: number }
  /** Somebody has decided about calls for which the turn waits. */
  | { type: "decided"; decisions: DecidedCall[] }
  /** Words that the user added to the turn while it was under way. */
  | { type: "steered"; message_id: string; message: string }
  /** `content` is null in styles that do not carry it. Then the parts so far are the content. */
  | { type: "result"; message_id: string | null; message: string; content: Part[] | null; usage: Usage | null; finish?: Finish }
  /** `content` is what the transcript has, if it has less than the events. */
  | { type: "error"; code: string; message: string; message_id?: string; content?: Part[] }
  /** Not of the server: the stream begins again, because its cursor is not known. All events before it are void. */
  | { type: "restart" };

export const isTerminal = (event: StreamEvent): boolean => event.type === "result" || event.type === "error";
