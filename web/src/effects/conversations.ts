/** The list of conversations: search, load more, rename, delete and undo. A change shows at once and is undone if the server refuses it. */
import type { Conversation } from "@turnkeep/client";
import * as routes from "../wire/routes";
import type { Services } from "./services";

const LIST_LIMIT = 30;

type Needs = Pick<Services, "store" | "session" | "notices" | "navigation" | "tabs">;

export class Conversations {
  #needs: Needs;

  constructor(needs: Needs) {
    this.#needs = needs;
  }

  async search(query: string): Promise<void> {
    this.#needs.store.dispatch({ type: "conversations/searched", query });
    try {
      const page = await routes.conversations({ q: query, limit: LIST_LIMIT });
      this.#needs.store.dispatch({ type: "conversations/loaded", query, page });
    } catch (error) {
      if (!this.#needs.session.hasEnded(error)) this.#needs.store.dispatch({ type: "conversations/failed" });
    }
  }

  async refresh(): Promise<void> {
    const { query, items } = this.#needs.store.get().conversations;
    const known = new Set(items.map((one) => one.id));
    try {
      const page = await routes.conversations({ q: query, limit: LIST_LIMIT });
      this.#needs.store.dispatch({ type: "conversations/refreshed", query, page, known });
    } catch (error) {
      this.#needs.session.hasEnded(error);
    }
  }

  async loadMore(): Promise<void> {
    const { query, cursor, isLoadingMore } = this.#needs.store.get().conversations;
    if (cursor === null || isLoadingMore) return;
    this.#needs.store.dispatch({ type: "conversations/loading-more" });
    try {
      const page = await routes.conversations({ q: query, cursor, limit: LIST_LIMIT });
      this.#needs.store.dispatch({ type: "conversations/more", query, page });
    } catch {
      this.#needs.store.dispatch({ type: "conversations/failed" });
    }
  }

  async rename(id: string, title: string): Promise<void> {
    const before = this.#needs.store.get().conversations.items.find((one) => one.id === id)?.title ?? null;
    this.#needs.store.dispatch({ type: "conversations/renamed", id, title });
    try {
      const conversation = await routes.changeConversation(id, { title });
      this.update(conversation);
      if (this.#needs.store.get().threads[id]) this.#needs.store.dispatch({ type: "thread/changed", id, conversation });
      this.#needs.tabs.post({ kind: "conversation", conversationId: id });
    } catch (error) {
      this.#needs.store.dispatch({ type: "conversations/renamed", id, title: before });
      this.#needs.notices.report(error);
    }
  }

  async remove(id: string): Promise<void> {
    const before = this.#needs.store.get().conversations.items.find((one) => one.id === id);
    this.#needs.store.dispatch({ type: "conversations/removed", id });
    const { route } = this.#needs.store.get();
    if (route.page === "chat" && route.conversationId === id) this.#needs.navigation.go({ page: "chat", conversationId: null });
    try {
      await routes.deleteConversation(id);
      this.#needs.tabs.post({ kind: "list" });
    } catch (error) {
      if (before) this.#needs.store.dispatch({ type: "conversations/restored", conversation: before });
      this.#needs.notices.report(error);
    }
  }

  async restore(): Promise<void> {
    const { removed } = this.#needs.store.get().conversations;
    if (!removed) return;
    try {
      this.#needs.store.dispatch({ type: "conversations/restored", conversation: await routes.restoreConversation(removed.id) });
      this.#needs.navigation.go({ page: "chat", conversationId: removed.id });
      this.#needs.tabs.post({ kind: "list" });
    } catch (error) {
      this.#needs.notices.report(error);
    }
  }

  /** The deleted conversation can no longer be restored with one click. */
  forgetRemoved(): void {
    this.#needs.store.dispatch({ type: "conversations/forgot-removed" });
  }

  /** Show the newest state of a conversation that another part of the page has read. */
  update(conversation: Conversation): void {
    this.#needs.store.dispatch({ type: "conversations/changed", conversation });
  }
}
