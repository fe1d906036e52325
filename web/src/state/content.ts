/** What the parts of a message say. */
import type { Message } from "../wire/types";

/** What somebody who copies a message wants: its words. */
export function wordsOf(parts: Message["content"]): string {
  return parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n\n");
}
