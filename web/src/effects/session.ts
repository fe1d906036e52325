/**
 * Who is signed in, and the life of the page around it: what is loaded after sign-in, the browser's events (network,
 * visibility), and regular refreshes.
 */
import { TurnkeepError } from "@turnkeep/client";
import { hasAnswers, hasAnswersElsewhere, threadId } from "../state/selectors";
import { NEW } from "../state/state";
import type { Store } from "../state/store";
import * as routes from "../wire/routes";
import type { Services } from "./services";
import { forgetStored, perTab, readStored, writeStored } from "./storage";
import type { TabChannel } from "./tabChannel";

const SIGN_IN_RETRY_MS = 2_000;
/** How often the thread in view is compared with the server: another device may have written in it. */
const THREAD_CHECK_MS = 4_000;
const LIST_REFRESH_MS = 20_000;
/** A hidden tab closes its stream after this long: a browser opens only six connections to one server. */
const HIDDEN_MS = 20_000;

export class Session {
  #store: Store;
  #tabs: TabChannel;
  #endListeners: (() => void)[] = [];
  #signInListeners: (() => void)[] = [];

  constructor(store: Store, tabs: TabChannel) {
    this.#store = store;
    this.#tabs = tabs;
  }

  /** Ask the server who is signed in; whether the server named a user. The state says what to show otherwise. */
  async load(): Promise<boolean> {
    const { me: before } = this.#store.get();
    try {
      const me = await routes.me();
      const owner = `${me.workspace_id}/${me.user_id ?? ""}`;
      const isOther = before !== null && `${before.workspace_id}/${before.user_id ?? ""}` !== owner;
      if ((readStored<string>("owner") ?? owner) !== owner) forgetStored();
      writeStored("owner", owner);
      // Another user signed in with this browser: nothing of the one before may stay on the page.
      if (isOther) location.reload();
      this.#store.dispatch({ type: "session", session: "signed_in", me });
      return !isOther;
    } catch (error) {
      const isOut = error instanceof TurnkeepError && error.status === 401;
      if (before === null && isOut) writeStored("returnTo", addressToKeep(), perTab);
      if (before === null) this.#store.dispatch({ type: "session", session: isOut ? "signed_out" : "unreachable" });
      else if (isOut) this.end();
      return false;
    }
  }

  /** Called after each sign-in that happened without a reload. */
  onSignIn(listener: () => void): void {
    this.#signInListeners.push(listener);
  }

  /** Sign in with the token of the link that the server prints. */
  async openLink(token: string): Promise<void> {
    await routes.openSigninLink(token);
    for (const listener of this.#signInListeners) listener();
  }

  async acceptInvite(secret: string): Promise<void> {
    await routes.acceptInvite(secret);
    this.#tabs.post({ kind: "session" });
    // From the beginning: this page may have shown another user.
    location.replace("/");
  }

  /** Sign out. What this browser keeps of the user is removed, and the page is loaded anew. */
  async signOut(): Promise<void> {
    const { provider_url: url } = await routes.signOut();
    forgetStored();
    writeStored("providerSignOut", url, perTab);
    this.#tabs.post({ kind: "session" });
    location.assign("/");
  }

  /** The address at which the user signs out at the identity provider too. It is given once, after a sign-out. */
  takeProviderSignOut(): string | null {
    const url = readStored<string>("providerSignOut", perTab);
    writeStored("providerSignOut", null, perTab);
    return url;
  }

  /** The address that this tab showed when it asked for a sign-in. It is given once: a sign-in may lead to `/` instead. */
  takeReturnAddress(): string | null {
    const address = readStored<string>("returnTo", perTab);
    writeStored("returnTo", null, perTab);
    return address;
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

  /** The server does not know the user any more: the page asks them to sign in, and keeps what they typed. */
  end(): void {
    const { me, session } = this.#store.get();
    if (session === "ended") return;
    for (const listener of this.#endListeners) listener();
    this.#store.dispatch({ type: "session", session: me === null ? "signed_out" : "ended" });
  }

  /** Whether a request failed because the session has ended. If so, this ends it here too. */
  hasEnded(error: unknown): boolean {
    if (!(error instanceof TurnkeepError) || error.status !== 401) return false;
    this.end();
    return true;
  }
}

/** Start the page. */
export async function start(services: Services): Promise<void> {
  const { store, session, navigation, connection, threads, conversations, tabs } = services;
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
  // A share link needs no user, and shows nothing of the one who is signed in.
  if (store.get().route.page === "share") return;
  watchVisibility(services);
  if (!services.host) services.notifications.start();
  session.onSignIn(() => void signIn(services));
  tabs.listen((message) => {
    if (message.kind === "session") void checkSession(services);
    if (message.kind === "conversation") void threads.refresh(message.conversationId);
    void conversations.refreshAll();
  });
  const isInUse = () => document.visibilityState === "visible" && store.get().session === "signed_in";
  setInterval(() => {
    if (!isInUse()) return;
    void threads.checkForChanges();
    // The list shows soon that an answer out of view has ended.
    if (hasAnswersElsewhere(store.get())) void conversations.refresh();
  }, THREAD_CHECK_MS);
  // An embedded chat shows no list. A hidden tab looks only for the end of answers: its title and a notification tell of it.
  const mayRefresh = () => isInUse() || (store.get().session === "signed_in" && hasAnswers(store.get()));
  if (!services.host) setInterval(() => mayRefresh() && void conversations.refresh(), LIST_REFRESH_MS);
  await signIn(services);
}

/** The address to come back to after a sign-in; null for the first page, and for an invite, which is used up then. */
function addressToKeep(): string | null {
  const { pathname, hash } = location;
  return pathname === "/" || pathname.startsWith("/invite") ? null : pathname + hash;
}

/** Another tab has signed in or out, or the user comes back to this one. */
async function checkSession(services: Services): Promise<void> {
  if (services.store.get().session === "signed_in") await services.session.load();
  else await signIn(services);
}

/** Find out who is signed in, then load what the page shows. Nothing is requested before. */
export async function signIn(services: Services): Promise<void> {
  const { store, host, session, navigation, outbox, conversations, tabs } = services;
  if (!(await session.load())) {
    if (store.get().session === "unreachable") setTimeout(() => void signIn(services), SIGN_IN_RETRY_MS);
    return;
  }
  // Tabs whose session had ended go on.
  tabs.post({ kind: "session" });
  const { route } = store.get();
  const last = host?.takeLastConversation() ?? null;
  if (last !== null && route.page === "chat" && route.conversationId === null) navigation.replace({ page: "chat", conversationId: last });
  const wanted = session.takeReturnAddress();
  if (wanted !== null && location.pathname === "/") navigation.restore(wanted);
  else navigation.show(store.get().route);
  outbox.resend();
  void session.loadChoices();
  if (host) return;
  void conversations.load();
  void session.loadPaths();
}

/** A hidden tab gives its stream back after a while. A tab that is looked at again shows the newest state. */
function watchVisibility(services: Services): void {
  const { store, threads, conversations } = services;
  let timer: ReturnType<typeof setTimeout> | undefined;
  document.addEventListener("visibilitychange", () => {
    clearTimeout(timer);
    if (document.visibilityState === "hidden") {
      timer = setTimeout(() => threads.unfollow(), HIDDEN_MS);
      return;
    }
    if (store.get().session !== "signed_in") {
      void checkSession(services);
      return;
    }
    threads.reconnect();
    const id = threadId(store.get());
    if (id !== NEW) void threads.refresh(id);
    void conversations.refreshAll();
  });
}
