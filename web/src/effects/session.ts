/**
 * Who is signed in, and the life of the page around it: what is loaded after sign-in, the browser's events (network,
 * visibility), and regular refreshes.
 */
import { threadId } from "../state/selectors";
import { NEW } from "../state/state";
import type { Store } from "../state/store";
import { ApiError } from "../wire/client";
import * as routes from "../wire/routes";
import type { Services } from "./services";

const SIGN_IN_RETRY_MS = 2_000;
/** How often the thread in view is compared with the server: another device may have written in it. */
const THREAD_CHECK_MS = 4_000;
const LIST_REFRESH_MS = 20_000;
/** A hidden tab closes its stream after this long: a browser opens only six connections to one server. */
const HIDDEN_MS = 20_000;

export class Session {
  #store: Store;
  #endListeners: (() => void)[] = [];

  constructor(store: Store) {
    this.#store = store;
  }

  /** Ask the server who is signed in; whether the server named a user. The state says what to show otherwise. */
  async load(): Promise<boolean> {
    try {
      this.#store.dispatch({ type: "session", session: "signed_in", me: await routes.me() });
      return true;
    } catch (error) {
      const isOut = error instanceof ApiError && error.status === 401;
      this.#store.dispatch({ type: "session", session: isOut ? "signed_out" : "unreachable" });
      return false;
    }
  }

  /** The models and agents that can be chosen. */
  async loadChoices(): Promise<void> {
    await Promise.all([
      routes.models().then((page) => this.#store.dispatch({ type: "models", models: page.data }), () => undefined),
      routes.agents().then((page) => this.#store.dispatch({ type: "agents", agents: page.data }), () => undefined),
    ]);
  }

  /** The routes that this server has: not every server has all sections of the settings. */
  async loadPaths(): Promise<void> {
    await routes.openapi().then(
      (document) => this.#store.dispatch({ type: "paths", paths: new Set(Object.keys(document.paths)) }),
      () => undefined,
    );
  }

  onEnd(listener: () => void): void {
    this.#endListeners.push(listener);
  }

  /** The server does not know the user any more: the page shows the sign-in form. */
  end(): void {
    for (const listener of this.#endListeners) listener();
    this.#store.dispatch({ type: "session", session: "signed_out" });
  }

  /** Whether a request failed because the session has ended. If so, this ends it here too. */
  hasEnded(error: unknown): boolean {
    if (!(error instanceof ApiError) || error.status !== 401) return false;
    this.end();
    return true;
  }
}

/** Start the page. */
export async function start(services: Services): Promise<void> {
  const { navigation, connection, threads, conversations, tabs } = services;
  navigation.start();
  const onNetwork = () => {
    connection.reset();
    if (navigator.onLine) {
      threads.reconnect();
      void threads.checkForChanges();
    }
  };
  addEventListener("online", onNetwork);
  addEventListener("offline", onNetwork);
  // The browser asks before it leaves.
  addEventListener("beforeunload", (event) => {
    if (services.uploads.isRunning || navigation.isHeld) event.preventDefault();
  });
  watchVisibility(services);
  tabs.listen((message) => {
    if (message.kind === "conversation") void threads.refresh(message.conversationId);
    void conversations.refresh();
  });
  setInterval(() => document.visibilityState === "visible" && void threads.checkForChanges(), THREAD_CHECK_MS);
  setInterval(() => document.visibilityState === "visible" && void conversations.refresh(), LIST_REFRESH_MS);
  await signIn(services);
}

/** Find out who is signed in, then load what the page shows. Nothing is requested before. */
export async function signIn(services: Services): Promise<void> {
  const { store, session, navigation, outbox, conversations } = services;
  if (!(await session.load())) {
    if (store.get().session === "unreachable") setTimeout(() => void signIn(services), SIGN_IN_RETRY_MS);
    return;
  }
  navigation.show(store.get().route);
  outbox.resend();
  void conversations.search("");
  void session.loadChoices();
  void session.loadPaths();
}

/** A hidden tab gives its stream back after a while. A tab that is looked at again shows the newest state. */
function watchVisibility({ store, threads, conversations }: Services): void {
  let timer: ReturnType<typeof setTimeout> | undefined;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.visibilityState === "hidden") {
      timer = setTimeout(() => threads.unfollow(), HIDDEN_MS);
      return;
    }
    threads.reconnect();
    const id = threadId(store.get());
    if (id !== NEW) void threads.refresh(id);
    void conversations.refresh();
  });
}
