/** Other tabs of this browser: what one of them began or changed, the others should show at once. */

export type Told =
  | { readonly kind: "asked"; readonly conversationId: string }
  | { readonly kind: "changed"; readonly conversationId: string }
  | { readonly kind: "listed" };

export class Tabs {
  #channel: BroadcastChannel | null = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel("turnkeep");

  tell(told: Told): void {
    this.#channel?.postMessage(told);
  }

  listen(listener: (told: Told) => void): void {
    this.#channel?.addEventListener("message", (event: MessageEvent<Told>) => listener(event.data));
  }
}
