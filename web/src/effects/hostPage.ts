/**
 * The page around an embedded chat. It says who the user is: it sends user tokens with `postMessage`, at first and
 * whenever the server refuses the last one. Tokens are kept in memory only.
 *
 * Messages are taken from the parent window alone, and only if its origin is one of those that may embed the chat. The
 * server names them in the document, and its content security policy lets no other page frame it.
 */
import { isId } from "../state/route";
import { NEW } from "../state/state";
import { threadId } from "../state/selectors";
import type { Store } from "../state/store";
import type { TokenSource } from "../wire/credentials";
import type { Services } from "./services";
import { signIn } from "./session";
import { forgetStored, perTab, readStored, writeStored } from "./storage";

/** How long a request waits for a token, and how often the host page is asked meanwhile: its script may load later. */
const WAIT_MS = 20_000;
const ASK_MS = 1_000;
const USER_TOKEN = "tku_";

export class HostPage implements TokenSource {
  /** Whether there is a page around this one. */
  readonly isFramed = window.parent !== window;
  /** The agent that answers new conversations; null leaves it to the server. */
  readonly agentId: string | null;
  #store: Store;
  #origins: readonly string[];
  #token: string | null = null;
  /** The origin that the newest token came from. */
  #origin: string | null = null;
  #asked: Promise<string | null> | null = null;
  #answer: ((token: string | null) => void) | null = null;
  #shown: string | null = null;
  #isNoting = false;

  constructor(store: Store) {
    this.#store = store;
    this.agentId = new URLSearchParams(location.search).get("agent") || null;
    const hosts = document.querySelector<HTMLMetaElement>('meta[name="turnkeep-hosts"]')?.content ?? "";
    this.#origins = hosts.split(" ").map((host) => (host === "'self'" ? location.origin : host));
  }

  get token(): string | null {
    return this.#token;
  }

  /** Another token than the one that the server refused; null if the host page sends none in time. */
  async renew(refused: string | null): Promise<string | null> {
    if (this.#token !== null && this.#token !== refused) return this.#token;
    this.#token = null;
    this.#asked ??= this.#ask(refused === null ? "start" : "expired");
    return await this.#asked;
  }

  /** Hear the host page, and tell it which conversation is in view. */
  listen(services: Services): void {
    addEventListener("message", (event: MessageEvent<unknown>) => {
      if (event.source !== window.parent || !this.#origins.includes(event.origin)) return;
      const { data } = event;
      if (typeof data !== "object" || data === null || !("type" in data) || data.type !== "turnkeep:token" || !("token" in data)) return;
      this.#origin = event.origin;
      this.#take(data.token, services);
    });
    this.#store.subscribe(() => this.#note());
  }

  /** The conversation that was in view before the page around this one was loaded again. From now on, changes are noted. */
  takeLastConversation(): string | null {
    this.#isNoting = true;
    const id = readStored<string>(this.#name, perTab);
    return isId("conv", id) ? id : null;
  }

  #take(token: unknown, services: Services): void {
    if (token === null) {
      // The user has signed out of the host page. Nothing of this user may stay here.
      const wasSignedIn = this.#token !== null || this.#store.get().me !== null;
      this.#token = null;
      forgetStored();
      if (wasSignedIn) location.reload();
      return;
    }
    if (typeof token !== "string" || !token.startsWith(USER_TOKEN)) {
      console.error("Turnkeep: the host page must send a user token (tku_…), which its server gets from POST /v1/tokens. A service key does not belong into a browser.");
      return;
    }
    const isNew = token !== this.#token;
    this.#token = token;
    if (this.#answer) this.#answer(token);
    else if (isNew && this.#store.get().session !== "starting") void (this.#store.get().session === "signed_in" ? services.session.load() : signIn(services));
  }

  /** Ask until a token comes, or until nothing waits for it any more. */
  #ask(reason: "start" | "expired"): Promise<string | null> {
    return new Promise((resolve) => {
      const ask = () => this.#post({ type: "turnkeep:token-needed", reason }, "*");
      const timer = setInterval(ask, ASK_MS);
      const end = setTimeout(() => this.#answer?.(null), WAIT_MS);
      this.#answer = (token) => {
        clearInterval(timer);
        clearTimeout(end);
        this.#answer = null;
        this.#asked = null;
        resolve(token);
      };
      ask();
    });
  }

  #note(): void {
    const id = threadId(this.#store.get());
    if (!this.#isNoting || this.#store.get().session !== "signed_in" || id === this.#shown) return;
    this.#shown = id;
    const conversationId = id === NEW ? null : id;
    writeStored(this.#name, conversationId, perTab);
    if (this.#origin !== null) this.#post({ type: "turnkeep:conversation", conversation_id: conversationId }, this.#origin);
  }

  #post(message: object, origin: string): void {
    window.parent.postMessage(message, origin);
  }

  get #name(): string {
    return `conversation:${this.agentId ?? ""}`;
  }
}
