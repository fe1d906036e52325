/** The list of conversations: search, page, rename, delete and undo. What is done here shows at once, and is taken back if refused. */
import type { Store } from "../state/store";
import * as routes from "../wire/routes";
import type { Conversation } from "../wire/types";
import type { Office } from "./office";
import type { Tabs } from "./tabs";

const PAGE_CONVERSATIONS = 30;

export class Listing {
  #store: Store;
  #tabs: Tabs;
  #office: Office;

  constructor(store: Store, tabs: Tabs, office: Office) {
    this.#store = store;
    this.#tabs = tabs;
    this.#office = office;
  }

  async search(query: string): Promise<void> {
    this.#store.dispatch({ type: "history/searched", query });
    try {
      const page = await routes.conversations({ q: query, limit: PAGE_CONVERSATIONS });
      this.#store.dispatch({ type: "history/loaded", query, page });
    } catch (error) {
      if (!this.#office.isSignedOut(error)) this.#store.dispatch({ type: "history/failed" });
    }
  }

  async refresh(): Promise<void> {
    const { query } = this.#store.get().history;
    try {
      const page = await routes.conversations({ q: query, limit: PAGE_CONVERSATIONS });
      this.#store.dispatch({ type: "history/refreshed", query, page });
    } catch (error) {
      this.#office.isSignedOut(error);
    }
  }

  async loadMore(): Promise<void> {
    const { query, cursor, isLoadingMore } = this.#store.get().history;
    if (cursor === null || isLoadingMore) return;
    this.#store.dispatch({ type: "history/loading-more" });
    try {
      const page = await routes.conversations({ q: query, cursor, limit: PAGE_CONVERSATIONS });
      this.#store.dispatch({ type: "history/more", query, page });
    } catch {
      this.#store.dispatch({ type: "history/failed" });
    }
  }

  async rename(id: string, title: string): Promise<void> {
    const before = this.#store.get().history.items.find((one) => one.id === id)?.title ?? null;
    this.#store.dispatch({ type: "history/renamed", id, title });
    try {
      const conversation = await routes.changeConversation(id, { title });
      this.changed(conversation);
      if (this.#store.get().threads[id]) this.#store.dispatch({ type: "thread/changed", id, conversation });
      this.#tabs.tell({ kind: "changed", conversationId: id });
    } catch (error) {
      this.#store.dispatch({ type: "history/renamed", id, title: before });
      this.#office.complain(error);
    }
  }

  async remove(id: string): Promise<void> {
    const before = this.#store.get().history.items.find((one) => one.id === id);
    this.#store.dispatch({ type: "history/removed", id });
    const { route } = this.#store.get();
    if (route.page === "chat" && route.conversationId === id) this.#office.go({ page: "chat", conversationId: null });
    try {
      await routes.deleteConversation(id);
      this.#tabs.tell({ kind: "listed" });
    } catch (error) {
      if (before) this.#store.dispatch({ type: "history/restored", conversation: before });
      this.#office.complain(error);
    }
  }

  async restore(): Promise<void> {
    const { removed } = this.#store.get().history;
    if (!removed) return;
    try {
      this.#store.dispatch({ type: "history/restored", conversation: await routes.restoreConversation(removed.id) });
      this.#office.go({ page: "chat", conversationId: removed.id });
      this.#tabs.tell({ kind: "listed" });
    } catch (error) {
      this.#office.complain(error);
    }
  }

  forgetRemoved(): void {
    this.#store.dispatch({ type: "history/forgot-removed" });
  }

  changed(conversation: Conversation): void {
    this.#store.dispatch({ type: "history/changed", conversation });
  }
}
