/** Messages between the tabs of this browser, so that a change in one tab shows in the others at once. */
import { isEmbedded } from "./addresses";

const NAME = isEmbedded ? "turnkeep-embed" : "turnkeep";

export type TabMessage =
  /** A turn began in this conversation, or the conversation was changed. */
  | { readonly kind: "conversation"; readonly conversationId: string }
  /** A conversation was deleted or restored. */
  | { readonly kind: "list" }
  /** The user has signed in or out. */
  | { readonly kind: "session" };

export class TabChannel {
  #channel: BroadcastChannel | null = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(NAME);

  post(message: TabMessage): void {
    this.#channel?.postMessage(message);
  }

  listen(listener: (message: TabMessage) => void): void {
    this.#channel?.addEventListener("message", (event: MessageEvent<TabMessage>) => listener(event.data));
  }
}
