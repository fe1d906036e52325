/** The list of conversations: search, load more, rename, pin, move, delete and undo. A change shows at once and is undone if the server refuses it. */
import type { Conversation } from "@turnkeep/client";
import { allListed } from "../state/conversationList";
import { threadId } from "../state/selectors";
import * as routes from "../wire/routes";
import type { Services } from "./services";
import { readStored, writeStored } from "./storage";

const LIST_LIMIT = 30;
const PINNED_LIMIT = 100;

type Needs = Pick<Services, "store" | "session" | "notices" | "navigation" | "tabs">;

export class Conversations {
  #needs: Needs;

  constructor(needs: Needs) {
    this.#needs = needs;
  }

  /** Load the list, with the pinned conversations and the folders that were open. */
  async load(): Promise<void> {
    await Promise.all([this.search(""), this.#loadPinned(), this.loadFolders(), ...this.openFolders.map((folder) => this.loadFolder(folder))]);
  }

  async search(query: string): Promise<void> {
    this.#needs.store.dispatch({ type: "conversations/searched", query });
    try {
      const page = await this.#page({ ...listOf(query), limit: LIST_LIMIT });
      this.#needs.store.dispatch({ type: "conversations/loaded", query, page });
    } catch (error) {
      if (!this.#needs.session.hasEnded(error)) this.#needs.store.dispatch({ type: "conversations/failed" });
    }
  }

  async refresh(): Promise<void> {
    const { query, items, pinned, folderCursors } = this.#list;
    const known = new Set(items.map((one) => one.id));
    if (pinned.length) void this.#loadPinned();
    for (const folder of this.openFolders) if (folder in folderCursors) void this.loadFolder(folder);
    try {
      const page = await this.#page({ ...listOf(query), limit: LIST_LIMIT });
      this.#needs.store.dispatch({ type: "conversations/refreshed", query, page, known });
    } catch (error) {
      this.#needs.session.hasEnded(error);
    }
  }

  /** The same, also of what was pinned or moved elsewhere. */
  async refreshAll(): Promise<void> {
    await Promise.all([this.refresh(), this.#loadPinned(), this.loadFolders()]);
  }

  /** A part of the list. What is in view when it is asked for is read, also if the server has not been told yet. */
  async #page(query: Parameters<typeof routes.conversations>[0]): ReturnType<typeof routes.conversations> {
    const seen = document.visibilityState === "visible" ? threadId(this.#needs.store.get()) : null;
    const page = await routes.conversations(query);
    return { ...page, data: page.data.map((one) => (one.id === seen && one.is_unread ? { ...one, is_unread: false } : one)) };
  }

  async loadMore(): Promise<void> {
    const { query, cursor, isLoadingMore } = this.#list;
    if (cursor === null || isLoadingMore) return;
    this.#needs.store.dispatch({ type: "conversations/loading-more" });
    try {
      const page = await this.#page({ ...listOf(query), cursor, limit: LIST_LIMIT });
      this.#needs.store.dispatch({ type: "conversations/more", query, page });
    } catch {
      this.#needs.store.dispatch({ type: "conversations/failed" });
    }
  }

  async #loadPinned(): Promise<void> {
    await this.#quietly(async () => {
      const page = await this.#page({ is_pinned: true, limit: PINNED_LIMIT });
      this.#needs.store.dispatch({ type: "conversations/pinned", pinned: page.data });
    });
  }

  async loadFolders(): Promise<void> {
    await this.#quietly(async () => this.#needs.store.dispatch({ type: "conversations/folders", folders: await routes.folders() }));
  }

  /** Load the first conversations of a folder, or the next ones. */
  async loadFolder(folder: string, { isMore = false } = {}): Promise<void> {
    const cursor = isMore ? (this.#list.folderCursors[folder] ?? null) : null;
    await this.#quietly(async () => {
      const page = await this.#page({ folder, cursor, limit: LIST_LIMIT });
      this.#needs.store.dispatch({ type: "conversations/filed", folder, page, isMore });
    });
  }

  /** The folders that are open in this browser. */
  get openFolders(): string[] {
    const stored = readStored<unknown>("folders");
    return Array.isArray(stored) ? stored.filter((name) => typeof name === "string") : [];
  }

  /** Open a folder in the list, or close it; the browser remembers it. */
  showFolder(folder: string, isOpen: boolean): void {
    const others = this.openFolders.filter((name) => name !== folder);
    writeStored("folders", isOpen ? [...others, folder] : others.length ? others : null);
    if (isOpen) void this.loadFolder(folder);
  }

  async rename(id: string, title: string): Promise<void> {
    const before = this.#find(id)?.title ?? null;
    this.#needs.store.dispatch({ type: "conversations/renamed", id, title });
    try {
      await this.#change(id, { title });
    } catch (error) {
      this.#needs.store.dispatch({ type: "conversations/renamed", id, title: before });
      this.#needs.notices.report(error);
    }
  }

  async pin(id: string, isPinned: boolean): Promise<void> {
    await this.#place(id, { is_pinned: isPinned });
  }

  /** Put a conversation into a folder; null takes it out of its folder. */
  async move(id: string, folder: string | null): Promise<void> {
    await this.#place(id, { folder });
    void this.loadFolders();
  }

  /** Ask for the folder of a conversation; null asks no more. */
  askFolder(id: string | null): void {
    this.#needs.store.dispatch({ type: "conversations/moving", id });
  }

  /** Give a folder another name; null takes all conversations out of it. */
  async renameFolder(name: string, newName: string | null): Promise<void> {
    try {
      await routes.renameFolder(name, newName);
      const isOpen = this.openFolders.includes(name);
      this.showFolder(name, false);
      if (newName !== null && isOpen) this.showFolder(newName, true);
      this.#needs.tabs.post({ kind: "list" });
    } catch (error) {
      this.#needs.notices.report(error);
    }
    await this.refreshAll();
  }

  async remove(id: string): Promise<void> {
    const before = this.#find(id);
    this.#needs.store.dispatch({ type: "conversations/removed", id });
    const { route } = this.#needs.store.get();
    if (route.page === "chat" && route.conversationId === id) this.#needs.navigation.go({ page: "chat", conversationId: null });
    try {
      await routes.deleteConversation(id);
      this.#needs.tabs.post({ kind: "list" });
      if (before?.folder) void this.loadFolders();
    } catch (error) {
      if (before) this.#needs.store.dispatch({ type: "conversations/restored", conversation: before });
      this.#needs.notices.report(error);
    }
  }

  /** Take a conversation out of the trash. */
  async recover(id: string): Promise<void> {
    this.#needs.store.dispatch({ type: "conversations/restored", conversation: await routes.restoreConversation(id) });
    this.#needs.tabs.post({ kind: "list" });
  }

  /** Erase a conversation of the trash. It cannot be restored. */
  async erase(id: string): Promise<void> {
    await routes.eraseConversation(id);
    if (this.#list.removed?.id === id) this.forgetRemoved();
  }

  async restore(): Promise<void> {
    const { removed } = this.#list;
    if (!removed) return;
    try {
      await this.recover(removed.id);
      this.#needs.navigation.go({ page: "chat", conversationId: removed.id });
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

  async #change(id: string, changes: object): Promise<void> {
    const conversation = await routes.changeConversation(id, changes);
    this.update(conversation);
    if (this.#needs.store.get().threads[id]) this.#needs.store.dispatch({ type: "thread/changed", id, conversation });
    this.#needs.tabs.post({ kind: "conversation", conversationId: id });
  }

  /** Show a conversation in another group, and undo that if the server refuses it. */
  async #place(id: string, changes: { is_pinned: boolean } | { folder: string | null }): Promise<void> {
    const before = this.#find(id) ?? this.#needs.store.get().threads[id]?.conversation;
    if (before) this.update({ ...before, ...("folder" in changes ? { folder: changes.folder ?? "" } : changes) });
    try {
      await this.#change(id, changes);
    } catch (error) {
      if (before) this.update(before);
      this.#needs.notices.report(error);
    }
  }

  async #quietly(load: () => Promise<void>): Promise<void> {
    try {
      await load();
    } catch (error) {
      // The next refresh tries again.
      this.#needs.session.hasEnded(error);
    }
  }

  #find(id: string): Conversation | undefined {
    return allListed(this.#list).find((one) => one.id === id);
  }

  get #list() {
    return this.#needs.store.get().conversations;
  }
}

/** A search looks in all conversations. Without one, pinned conversations and those in folders have places of their own. */
const listOf = (query: string) => (query ? { q: query } : { is_pinned: false, is_filed: false });
