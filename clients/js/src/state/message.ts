/** Facts about one message. */
import type { Message } from "../wire/types.js";

/** The text of a message, without its other parts. */
export function messageText(parts: Message["content"]): string {
  return parts.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n\n");
}

/** A message of a thread. `isSteer`: its words were added to a turn that was under way. */
export type ThreadMessage = Message & { readonly isSteer?: true };

/** The same before and after the message has its id from the server: a turn has one question and one answer. */
export const messageKey = (message: ThreadMessage): string => (message.isSteer ? `${message.turn_id}:steer:${message.id}` : `${message.turn_id}:${message.role}`);

/** The turns beside this one in groups, one for each version of the question. A server without groups has one for all. */
export function versionsOf(message: Pick<Message, "siblings" | "versions">): readonly (readonly string[])[] {
  return message.versions ?? (message.siblings ? [message.siblings] : []);
}

/** Messages from the oldest on, with a mark on those that steer: all messages of the user in a turn but the first. */
export function withSteers(messages: readonly ThreadMessage[]): readonly ThreadMessage[] {
  const asked = new Set<string>();
  return messages.map((message) => {
    if (message.role !== "user") return message;
    const isSteer = asked.has(message.turn_id);
    asked.add(message.turn_id);
    if (isSteer === (message.isSteer ?? false)) return message;
    const { isSteer: _, ...plain } = message;
    return isSteer ? { ...plain, isSteer } : plain;
  });
}
