/** Facts about one message. */
import type { Message } from "../wire/types";

/** The text of a message, without its other parts. */
export function messageText(parts: Message["content"]): string {
  return parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n\n");
}

/** The same before and after the message has its id from the server: a turn has one message of each role. */
export const messageKey = (message: Message): string => `${message.turn_id}:${message.role}`;
