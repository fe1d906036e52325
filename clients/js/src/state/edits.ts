/** Messages that are being edited: their text and files, until the edit is sent or closed. */
import type { FileRef, Message } from "../wire/types.js";

export interface MessageEdit {
  readonly text: string;
  /** The files of the message that are kept. New ones are uploads under `editUploadKey`. */
  readonly files: readonly FileRef[];
  readonly isSending: boolean;
  /** Counts how often an editor was opened. An edit that was closed and opened again is another edit. */
  readonly opening: number;
}

export type Edits = Readonly<Record<string, MessageEdit>>;

/** The key of an edit's uploads in the state. */
export const editUploadKey = (turnId: string): string => `edit:${turnId}`;

export function withEdit(edits: Edits, turnId: string, changes: Partial<MessageEdit>): Edits {
  return { ...edits, [turnId]: { ...(edits[turnId] ?? { text: "", files: [], isSending: false, opening: 0 }), ...changes } };
}

export function withoutEdit(edits: Edits, turnId: string): Edits {
  const { [turnId]: _, ...others } = edits;
  return others;
}

/**
 * The files that an edit sends. If none was removed or added it names none, and the server keeps those that still exist:
 * it would refuse an id of a file that was deleted meanwhile.
 */
export function attachmentIds(question: Message | undefined, files: readonly FileRef[]): { attachment_ids?: string[] } {
  const [before, after] = [question?.attachments ?? [], files].map((all) => all.map((file) => file.file_id));
  return before?.join() === after?.join() ? {} : { attachment_ids: after ?? [] };
}
