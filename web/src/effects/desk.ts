/**
 * What the page does: it asks the server, follows turns, and turns every answer into an action for the state. The
 * screen calls these verbs and never fetches anything itself.
 */
import { words } from "../words";
import { isOneMoment, queuedIds, queuedIn } from "../state/queue";
import { pathOf, type Route, routeOf } from "../state/route";
import { threadId, unexplained } from "../state/select";
import { NEW } from "../state/state";
import type { Store } from "../state/store";
import type { Outgoing, Thread } from "../state/thread";
import { ApiError } from "../wire/client";
import * as routes from "../wire/routes";
import type { Conversation, FileRef, IfBusy, Message, Page } from "../wire/types";
import { Branches, type Turns } from "./branches";
import { asJson, asMarkdown, download, everyMessage, fileName } from "./exporting";
import { Follower } from "./follow";
import { inThisTab, keep, kept } from "./kept";
import { Listing } from "./listing";
import { sentence } from "./office";
import { Tabs } from "./tabs";
import { Uploads } from "./uploads";

const PAGE_MESSAGES = 40;
/** How often a thread that is looked at asks whether somebody elsewhere has written in it. */
const LOOK_MS = 4_000;
const LIST_MS = 20_000;
/** A hidden tab gives its connection back after this long: a browser has only six for one server. */
const HIDDEN_MS = 20_000;
const RESEND_MS = 1_500;
/** How often a conversation and its messages are asked for until they tell of one moment. */
const READS = 3;

export interface Question {
  text: string;
  attachments: readonly FileRef[];
  agentId: string | null;
  model: string | null;
  ifBusy: IfBusy;
}

/** What no server has taken yet, and whose it is. */
interface Unsent {
  sender: string;
  unsent: { id: string; outgoing: Outgoing }[];
}

export class Desk implements Turns {
  readonly store: Store;
  readonly uploads: Uploads;
  readonly listing: Listing;
  readonly branches: Branches;
  #follower: Follower | null = null;
  #tabs = new Tabs();
  #notices = 0;
  #reads = 0;
  /** The newest read that each thread shows; the answer to an earlier one comes too late. */
  #shown = new Map<string, number>();
  #hidden: ReturnType<typeof setTimeout> | null = null;
  /** The newest message that was sent in the new conversation, until it is answered for: the next one waits for it. */
  #beginning: Promise<void> | null = null;

  constructor(store: Store) {
    this.store = store;
    this.uploads = new Uploads(store, this);
    this.listing = new Listing(store, this.#tabs, this);
    this.branches = new Branches(store, this.#tabs, this.uploads, this);
  }

  async start(): Promise<void> {
    addEventListener("popstate", () => this.#arrive(routeOf(location.pathname, location.hash)));
    addEventListener("online", () => this.#online(true));
    addEventListener("offline", () => this.#online(false));
    document.addEventListener("visibilitychange", () => this.#seen());
    this.#tabs.listen((told) => {
      if (told.kind !== "listed") void this.refresh(told.conversationId);
      void this.listing.refresh();
    });
    setInterval(() => document.visibilityState === "visible" && void this.#look(), LOOK_MS);
    setInterval(() => document.visibilityState === "visible" && void this.listing.refresh(), LIST_MS);
    await this.signIn();
  }

  /** Find out who we are. Nothing else is asked before. */
  async signIn(): Promise<void> {
    try {
      this.store.dispatch({ type: "session", session: "in", me: await routes.me() });
    } catch (error) {
      const isOut = error instanceof ApiError && error.status === 401;
      this.store.dispatch({ type: "session", session: isOut ? "out" : "unreachable" });
      if (!isOut) setTimeout(() => void this.signIn(), 2_000);
      return;
    }
    this.#arrive(this.store.get().route);
    this.#recallUnsent();
    void this.listing.search("");
    void this.loadChoices();
    void routes.openapi().then(
      (document) => this.store.dispatch({ type: "paths", paths: new Set(Object.keys(document.paths)) }),
      () => undefined,
    );
  }

  async loadChoices(): Promise<void> {
    await Promise.all([
      routes.models().then((page) => this.store.dispatch({ type: "models", models: page.data }), () => undefined),
      routes.agents().then((page) => this.store.dispatch({ type: "agents", agents: page.data }), () => undefined),
    ]);
  }

  // --- where we are

  go(route: Route): void {
    const here = location.pathname + location.hash;
    if (pathOf(route) !== here) history.pushState({ from: here }, "", pathOf(route));
    this.#arrive(route);
  }

  /** Go to where one came from if that is `route`, so that going back does not lead here again. */
  close(route: Route): void {
    const { from } = (history.state ?? {}) as { from?: string };
    if (from === pathOf(route)) history.back();
    else this.go(route);
  }

  #arrive(route: Route): void {
    const before = this.store.get().route;
    this.store.dispatch({ type: "route", route });
    if (this.store.get().session !== "in" || route.page !== "chat") return;
    // Something was opened or closed beside the thread, which goes on as it was.
    const isBeside = before.page === "chat" && before.conversationId === route.conversationId && pathOf(before) !== pathOf(route);
    if (isBeside && this.#thread()?.status === "ready") return;
    if (route.conversationId === null) {
      this.#unfollow();
      return;
    }
    void this.open(route.conversationId);
  }

  // --- threads

  async open(id: string): Promise<void> {
    if (this.#follower && this.store.get().threads[id]?.live?.id !== this.#follower.turnId) this.#unfollow();
    this.store.dispatch({ type: "thread/opened", id });
    await this.#load(id, "thread/loaded");
  }

  async refresh(id: string): Promise<void> {
    if (this.store.get().threads[id]?.status === "ready") await this.#load(id, "thread/refreshed");
  }

  async #load(id: string, type: "thread/loaded" | "thread/refreshed"): Promise<void> {
    this.#reads += 1;
    const read = this.#reads;
    try {
      const told = await this.#read(id);
      if (read < (this.#shown.get(id) ?? 0)) return;
      this.#shown.set(id, read);
      this.store.dispatch({ type, id, ...told });
      this.listing.changed(told.conversation);
      this.#followRunning(told.conversation);
      this.#explain(id);
      this.#rememberQueued(id);
    } catch (error) {
      if (this.isSignedOut(error)) return;
      const isMissing = error instanceof ApiError && error.status === 404;
      this.store.dispatch({ type: "thread/failed", id, isMissing, error: sentence(error) });
    }
  }

  /** A conversation, its newest messages, and what waited in it as far as this page knew when it asked. */
  async #read(id: string): Promise<{ conversation: Conversation; page: Page<Message>; known: Outgoing[] }> {
    for (let reads = 1; ; reads += 1) {
      const known = [...(kept<Outgoing[]>(`queued:${id}`) ?? []), ...queuedIn(this.store.get().threads[id])];
      const [conversation, page] = await Promise.all([
        routes.conversation(id),
        routes.messages(id, { order: "desc", limit: PAGE_MESSAGES }),
      ]);
      if (reads === READS || isOneMoment(conversation, page)) return { conversation, page, known };
    }
  }

  async loadOlder(id: string): Promise<void> {
    const thread = this.store.get().threads[id];
    if (!thread?.older || thread.isLoadingOlder) return;
    this.store.dispatch({ type: "thread/loading-older", id });
    try {
      const page = await routes.messages(id, { order: "desc", limit: 100, cursor: thread.older });
      this.store.dispatch({ type: "thread/older", id, page });
      this.#explain(id);
    } catch (error) {
      this.store.dispatch({ type: "thread/older-failed", id });
      this.complain(error);
    }
  }

  /** Ask, for turns that failed, why. */
  #explain(id: string): void {
    const thread = this.store.get().threads[id];
    for (const turnId of thread ? unexplained(thread) : [])
      void routes.turn(turnId).then(
        (turn) => this.store.dispatch({ type: "turn/failure", id, turn_id: turnId, error: turn.error ?? { code: "internal", message: words.failed } }),
        () => undefined,
      );
  }

  /** Somebody elsewhere (another device, the API) may have written in this thread. */
  async #look(): Promise<void> {
    const thread = this.#thread();
    if (!thread?.conversation || thread.status !== "ready") return;
    // What is followed tells by itself. One that nobody follows any more has lost its end to a broken connection.
    if (thread.live) return this.#follower?.turnId === thread.live.id ? undefined : await this.refresh(thread.id);
    try {
      const now = await routes.conversation(thread.id);
      this.store.dispatch({ type: "connection", connection: "good" });
      const then = thread.conversation;
      const isMoved = now.head_turn_id !== then.head_turn_id || now.updated_at !== then.updated_at;
      if (isMoved || now.running_turn?.id !== then.running_turn?.id || queuedIds(now) !== queuedIds(then)) await this.refresh(thread.id);
    } catch (error) {
      this.isSignedOut(error);
    }
  }

  // --- following

  #followRunning(conversation: Conversation): void {
    const turnId = conversation.running_turn?.id;
    const { route } = this.store.get();
    const isInView = route.page === "chat" && route.conversationId === conversation.id;
    if (!turnId || !isInView || this.#follower?.turnId === turnId) return;
    this.follow(conversation.id, turnId);
  }

  follow(id: string, turnId: string): void {
    this.#unfollow();
    this.store.dispatch({ type: "turn/followed", id, turn_id: turnId });
    // A stream that is read from its beginning replaces what was drawn, once it is there.
    let isReplay = true;
    const follower: Follower = new Follower(turnId, {
      onEvents: (events) => {
        this.store.dispatch({ type: "turn/events", id, turn_id: turnId, events, now: Date.now(), isReplay });
        isReplay = false;
      },
      onRestart: () => {
        isReplay = true;
      },
      onConnection: (isGood) => this.store.dispatch({ type: "connection", connection: isGood ? "good" : navigator.onLine ? "reconnecting" : "offline" }),
      onEnd: (reason) => {
        if (this.#follower === follower) this.#follower = null;
        if (reason === "signed_out") this.store.dispatch({ type: "session", session: "out" });
        else void this.refresh(id).then(() => this.listing.refresh());
      },
    });
    this.#follower = follower;
  }

  #unfollow(): void {
    this.#follower?.close();
    this.#follower = null;
    this.store.dispatch({ type: "connection", connection: navigator.onLine ? "good" : "offline" });
  }

  #online(isOnline: boolean): void {
    this.store.dispatch({ type: "connection", connection: isOnline ? "good" : "offline" });
    if (!isOnline) return;
    this.#follower?.hurry();
    void this.#look();
  }

  #seen(): void {
    if (this.#hidden !== null) clearTimeout(this.#hidden);
    this.#hidden = null;
    if (document.visibilityState === "hidden") {
      this.#hidden = setTimeout(() => this.#unfollow(), HIDDEN_MS);
      return;
    }
    this.#follower?.hurry();
    const thread = this.#thread();
    if (thread && thread.id !== NEW) void this.refresh(thread.id);
    void this.listing.refresh();
  }

  // --- asking

  async ask(question: Question): Promise<void> {
    const outgoing: Outgoing = {
      key: crypto.randomUUID(),
      text: question.text,
      attachments: question.attachments,
      agent_id: question.agentId,
      model: question.model,
      if_busy: question.ifBusy,
      status: "sending",
      turn_id: null,
      error: null,
      created_at: Date.now(),
    };
    const id = threadId(this.store.get());
    // Whatever begins the conversation may still be answered when this one comes.
    const isSecond = id === NEW && this.#beginning !== null && outgoing.if_busy === "reject";
    await this.#send(id, isSecond ? { ...outgoing, if_busy: "enqueue" } : outgoing);
  }

  /** Send again what was refused; the same key, so that it cannot be doubled. */
  async askAgain(id: string, key: string): Promise<void> {
    const refused = this.store.get().threads[id]?.outbox.find((one) => one.key === key);
    if (refused) await this.#send(id, { ...refused, status: "sending", error: null });
  }

  withdraw(id: string, key: string): void {
    this.store.dispatch({ type: "thread/withdrawn", id, key });
    this.#rememberQueued(id);
    this.#rememberUnsent();
  }

  /** What no server has taken yet is sent again after a reload, under the same key. */
  #rememberUnsent(): void {
    const all = Object.values(this.store.get().threads).flatMap((thread) => thread.outbox.map((outgoing) => ({ id: thread.id, outgoing })));
    const unsent = all.filter(({ outgoing }) => outgoing.status !== "queued");
    keep("unsent", unsent.length ? { sender: this.#sender(), unsent } : null, inThisTab);
  }

  #recallUnsent(): void {
    const recalled = kept<Unsent>("unsent", inThisTab);
    // Somebody else has signed in since. It is not theirs to send, nor to read.
    if (recalled?.sender !== this.#sender()) return keep("unsent", null, inThisTab);
    for (const { id, outgoing } of recalled.unsent) {
      if (this.#placeOf(outgoing.key) !== null) continue;
      if (outgoing.status === "sending") void this.#send(id, outgoing);
      else this.store.dispatch({ type: "thread/asked", id, outgoing });
    }
  }

  #sender(): string {
    const { me } = this.store.get();
    return `${me?.workspace_id ?? ""}/${me?.user_id ?? ""}`;
  }

  /** The server tells what waits, but not that a message takes the place of another: this browser keeps that for a reload. */
  #rememberQueued(id: string): void {
    const beside = queuedIn(this.store.get().threads[id]).filter((one) => one.beside);
    // Other tabs read this too: there it has the key of what another page sent.
    keep(`queued:${id}`, beside.length ? beside.map((one) => ({ ...one, key: one.turn_id })) : null);
  }

  async #send(id: string, outgoing: Outgoing): Promise<void> {
    this.store.dispatch({ type: "thread/asked", id, outgoing });
    this.#rememberUnsent();
    if (id !== NEW) return await this.#post(outgoing);
    // Only one begins the conversation. The next one goes where that one went; if it went nowhere, it begins one itself.
    const sending = this.#beginning ? this.#beginning.then(() => this.#post(outgoing)) : this.#post(outgoing);
    this.#beginning = sending;
    await sending;
    if (this.#beginning === sending) this.#beginning = null;
  }

  /** Send it to the thread that it stands in by now. */
  async #post(outgoing: Outgoing): Promise<void> {
    const id = this.#placeOf(outgoing.key);
    // It was taken back while it waited for another.
    if (id === null) return;
    const body = {
      ...(id === NEW ? {} : { conversation_id: id }),
      message: outgoing.text,
      attachment_ids: outgoing.attachments.map((file) => file.file_id),
      agent_id: outgoing.agent_id,
      model: outgoing.model,
      if_busy: outgoing.if_busy,
    };
    const isWanted = () => this.#placeOf(outgoing.key) !== null;
    try {
      const accepted = await this.insist(() => routes.ask(body, outgoing.key), isWanted);
      if (isWanted()) this.#accepted(id, accepted.conversation_id, outgoing.key, accepted.turn_id);
      // It was taken back while it was on its way.
      else await this.#cancel(accepted.turn_id);
    } catch (error) {
      if (this.isSignedOut(error)) return;
      const code = error instanceof ApiError ? error.code : "internal";
      const place = this.#placeOf(outgoing.key);
      if (place !== null) this.store.dispatch({ type: "thread/refused", id: place, key: outgoing.key, error: { code, message: sentence(error) } });
      this.#rememberUnsent();
    }
  }

  /** Ask until somebody answers or nobody wants it any more. Whoever asks gives a key, which makes it safe to ask again. */
  async insist<Answer>(asked: () => Promise<Answer>, isWanted: () => boolean): Promise<Answer> {
    for (;;) {
      try {
        const answer = await asked();
        this.store.dispatch({ type: "connection", connection: "good" });
        return answer;
      } catch (error) {
        if (!(error instanceof ApiError) || error.status !== 0) throw error;
        this.store.dispatch({ type: "connection", connection: navigator.onLine ? "reconnecting" : "offline" });
        await pause(RESEND_MS);
        if (!isWanted()) throw error;
      }
    }
  }

  /** It was taken by the server, and shows with what waits until its turn comes. */
  wait(id: string, outgoing: Outgoing): void {
    this.store.dispatch({ type: "thread/asked", id, outgoing });
    this.#rememberQueued(id);
  }

  /** The thread that a message waits in; none if it was taken back. A new thread changes its id while messages wait in it. */
  #placeOf(key: string): string | null {
    return Object.values(this.store.get().threads).find((thread) => thread.outbox.some((one) => one.key === key))?.id ?? null;
  }

  #accepted(from: string, id: string, key: string, turnId: string): void {
    if (from === NEW) {
      this.store.dispatch({ type: "thread/born", id });
      const { route } = this.store.get();
      if (route.page === "chat" && route.conversationId === null) {
        this.uploads.move(id);
        history.replaceState(null, "", pathOf({ page: "chat", conversationId: id }));
        this.store.dispatch({ type: "route", route: { page: "chat", conversationId: id } });
      }
    }
    this.store.dispatch({ type: "thread/accepted", id, key, turn_id: turnId });
    this.#rememberQueued(id);
    this.#rememberUnsent();
    if (this.store.get().threads[id]?.live?.id === turnId && threadId(this.store.get()) === id) this.follow(id, turnId);
    this.#tabs.tell({ kind: "asked", conversationId: id });
    void routes.conversation(id).then((conversation) => {
      this.store.dispatch({ type: "thread/changed", id, conversation });
      this.listing.changed(conversation);
      // Somebody elsewhere was quicker: it waits behind a turn that this page does not show yet.
      const isBehind = conversation.queued_turns?.some((turn) => turn.id === turnId) && this.store.get().threads[id]?.live?.id === turnId;
      if (isBehind) void this.refresh(id);
    }, () => undefined);
  }

  async stop(id: string): Promise<void> {
    const turnId = this.store.get().threads[id]?.live?.id;
    if (turnId) await this.#cancel(turnId);
  }

  async cancelQueued(id: string, turnId: string, key: string): Promise<void> {
    await this.#cancel(turnId);
    this.withdraw(id, key);
    this.#tabs.tell({ kind: "changed", conversationId: id });
    await this.refresh(id);
  }

  async #cancel(turnId: string): Promise<void> {
    try {
      await routes.cancel(turnId);
      this.#follower?.hurry();
    } catch (error) {
      this.complain(error);
    }
  }

  async choose(id: string, choice: { model?: string; agent_id?: string }): Promise<void> {
    try {
      this.store.dispatch({ type: "thread/changed", id, conversation: await routes.changeConversation(id, choice) });
    } catch (error) {
      this.complain(error);
    }
  }

  async export(id: string, format: "markdown" | "json"): Promise<void> {
    try {
      const [conversation, all] = await Promise.all([routes.conversation(id), everyMessage(id)]);
      if (format === "json") download(fileName(conversation, "json"), asJson(conversation, all), "application/json");
      else download(fileName(conversation, "md"), asMarkdown(conversation, all), "text/markdown");
    } catch (error) {
      this.complain(error);
    }
  }

  // --- telling

  say(text: string, kind: "info" | "error" = "info"): void {
    this.#notices += 1;
    const id = this.#notices;
    this.store.dispatch({ type: "notice", notice: { id, text, kind } });
    setTimeout(() => this.dismiss(id), kind === "error" ? 10_000 : 4_000);
  }

  dismiss(id: number): void {
    this.store.dispatch({ type: "notice/gone", id });
  }

  complain(error: unknown): void {
    if (!this.isSignedOut(error)) this.say(sentence(error), "error");
  }

  isSignedOut(error: unknown): boolean {
    if (!(error instanceof ApiError) || error.status !== 401) return false;
    this.#unfollow();
    this.store.dispatch({ type: "session", session: "out" });
    return true;
  }

  #thread(): Thread | undefined {
    return this.store.get().threads[threadId(this.store.get())];
  }
}

const pause = (ms: number) => new Promise((resolve) => setTimeout(resolve, ms));
