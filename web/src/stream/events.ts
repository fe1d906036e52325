/** The events of a turn, independent of the style of the stream. */
import type { Finish, Part, Source, StepPart, StoredFile, Usage } from "../wire/types";

export interface Call {
  id: string;
  name: string;
  args: unknown;
}

export type StreamEvent =
  | { type: "turn"; turn_id: string; conversation_id: string; user_message_id: string; status: "queued" | "running"; attempt: number }
  | { type: "delta"; iteration: number; kind: "text" | "reasoning"; text: string }
  | { type: "tool_calls"; iteration: number; text: string; reasoning?: string; calls: Call[] }
  | (Omit<StepPart, "type"> & { type: "step"; ts?: number })
  | { type: "sources"; sources: Source[] }
  | { type: "files"; files: StoredFile[] }
  | { type: "reset"; attempt: number; reason: string }
  /** `content` is null in styles that do not carry it. Then the parts so far are the content. */
  | { type: "result"; message_id: string | null; message: string; content: Part[] | null; usage: Usage | null; finish?: Finish }
  /** `content` is what the transcript has, if it has less than the events. */
  | { type: "error"; code: string; message: string; message_id?: string; content?: Part[] };

export const isTerminal = (event: StreamEvent): boolean => event.type === "result" || event.type === "error";
