/** A question that is being edited: its words and its files, until it is sent or the edit is given up. */
import type { FileRef, Message } from "../wire/types";

export interface MessageEdit {
  readonly text: string;
  /** Those of the question that shall stay. New ones are attached beside them, under `editUploadKey`. */
  readonly files: readonly FileRef[];
  readonly isSending: boolean;
  /** Which opening of the editor this is: one that was given up and opened again is another edit. */
  readonly opening: number;
}

export type Edits = Readonly<Record<string, MessageEdit>>;

/** Where the files are that are being attached to an edit. */
export const editUploadKey = (turnId: string): string => `edit:${turnId}`;

export function withEdit(edits: Edits, turnId: string, changes: Partial<MessageEdit>): Edits {
  return { ...edits, [turnId]: { ...(edits[turnId] ?? { text: "", files: [], isSending: false, opening: 0 }), ...changes } };
}

export function withoutEdit(edits: Edits, turnId: string): Edits {
  const { [turnId]: _, ...others } = edits;
  return others;
}

/**
 * What an edit sends of its files. Where none was taken out and none added it names none, and the question keeps those
 * that are still there: one that was deleted since would be refused by its name.
 */
export function attachmentIds(question: Message | undefined, files: readonly FileRef[]): { attachment_ids?: string[] } {
  const [before, after] = [question?.attachments ?? [], files].map((all) => all.map((file) => file.file_id));
  return before?.join() === after?.join() ? {} : { attachment_ids: after ?? [] };
}
