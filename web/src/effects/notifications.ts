/** Notifications of the browser when an answer has ended that the user does not look at. Off until the user turns them on. */
import { allListed } from "../state/conversationList";
import type { Store } from "../state/store";
import { words } from "../words";
import type { Navigation } from "./navigation";
import { readStored, writeStored } from "./storage";

const SETTING = "notify";

export class Notifications {
  #store: Store;
  #navigation: Navigation;
  /** The unread conversations that the user was told of; null until the list is loaded. */
  #told: ReadonlySet<string> | null = null;

  constructor(store: Store, navigation: Navigation) {
    this.#store = store;
    this.#navigation = navigation;
  }

  /** Whether this browser can show notifications. */
  get isSupported(): boolean {
    return typeof Notification !== "undefined";
  }

  get isOn(): boolean {
    return this.isSupported && readStored<boolean>(SETTING) === true && Notification.permission === "granted";
  }

  /** Turn them on or off; whether they are on then. The browser asks the user once. */
  async turn(isOn: boolean): Promise<boolean> {
    const isAllowed = isOn && this.isSupported && (await Notification.requestPermission()) === "granted";
    writeStored(SETTING, isAllowed ? true : null);
    return isAllowed;
  }

  /** Watch the list: a conversation that becomes unread has an answer that the user has not seen. */
  start(): void {
    this.#store.subscribe(() => {
      const { conversations } = this.#store.get();
      if (conversations.status !== "ready" || conversations.query) return;
      const unread = new Map(allListed(conversations).flatMap((one) => (one.is_unread ? [[one.id, one]] : [])));
      const before = this.#told;
      if (before && unread.size === before.size && [...unread.keys()].every((id) => before.has(id))) return;
      this.#told = new Set(unread.keys());
      // What was unread when the page was opened is no news.
      if (before === null || !this.isOn) return;
      for (const [id, one] of unread) if (!before.has(id)) this.#tell(id, one.title ?? one.preview ?? words.conversations.untitled);
    });
  }

  #tell(id: string, title: string): void {
    // Several tabs tell the same: the tag makes one notification of it.
    const shown = new Notification(words.notify.ended, { body: title, tag: `turnkeep-${id}` });
    shown.addEventListener("click", () => {
      window.focus();
      this.#navigation.go({ page: "chat", conversationId: id });
      shown.close();
    });
  }
}
