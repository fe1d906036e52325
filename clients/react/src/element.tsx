/**
 * `<turnkeep-chat base-url="…" agent="…" theme="dark">`: the chat as an element, for pages without React. The property `token`
 * is a function that gets a token. Styles of the page do not reach into it, but CSS variables do.
 */
import { createRoot, type Root } from "react-dom/client";

import styles from "./styles.css?inline";
import { TurnkeepChat, type TurnkeepChatProps } from "./TurnkeepChat.js";

type Token = NonNullable<TurnkeepChatProps["token"]>;

/** The server that this script came from, for pages that do not say another. */
const SCRIPT = document.currentScript instanceof HTMLScriptElement ? document.currentScript.src : "";
const SERVER = SCRIPT ? new URL(".", SCRIPT).href : undefined;

export class TurnkeepChatElement extends HTMLElement {
  static readonly observedAttributes = ["base-url", "agent", "theme", "conversation"];

  #root: Root | null = null;
  #token: Token | undefined;
  #words: TurnkeepChatProps["words"];
  #isDrawn = false;

  get token(): Token | undefined {
    return this.#token;
  }

  set token(token: Token | undefined) {
    this.#token = token;
    this.#draw();
  }

  /** Texts of your own. */
  get words(): TurnkeepChatProps["words"] {
    return this.#words;
  }

  set words(words: TurnkeepChatProps["words"]) {
    this.#words = words;
    this.#draw();
  }

  connectedCallback(): void {
    // A property that was set before this class was known hides the accessor.
    for (const name of ["token", "words"] as const) {
      if (!Object.hasOwn(this, name)) continue;
      const value = this[name];
      delete this[name];
      Object.assign(this, { [name]: value });
    }
    const shadow = this.shadowRoot ?? this.attachShadow({ mode: "open" });
    const sheet = new CSSStyleSheet();
    sheet.replaceSync(styles);
    shadow.adoptedStyleSheets = [sheet];
    this.#root = createRoot(shadow);
    this.#isDrawn = true;
    this.#draw();
  }

  disconnectedCallback(): void {
    this.#isDrawn = false;
    this.#root?.unmount();
    this.#root = null;
  }

  attributeChangedCallback(): void {
    this.#draw();
  }

  /** The conversation of this tab, so that a reload shows it again. */
  get #key(): string {
    return `turnkeep-chat:${this.getAttribute("base-url") ?? SERVER ?? ""}:${this.getAttribute("agent") ?? ""}`;
  }

  #draw(): void {
    if (!this.#isDrawn) return;
    const baseUrl = this.getAttribute("base-url") ?? SERVER;
    const agent = this.getAttribute("agent");
    const theme = this.getAttribute("theme");
    const conversation = this.getAttribute("conversation");
    const onConversation = (id: string) => {
      remember(this.#key, id);
      this.dispatchEvent(new CustomEvent("conversation", { detail: { id }, bubbles: true, composed: true }));
      this.#draw();
    };
    this.#root?.render(
      <TurnkeepChat
        {...(baseUrl ? { baseUrl } : {})}
        {...(agent ? { agent } : {})}
        {...(this.#token === undefined ? {} : { token: this.#token })}
        {...(this.#words === undefined ? {} : { words: this.#words })}
        conversationId={conversation ?? remembered(this.#key)}
        beginsAnew={conversation === null}
        theme={theme === "light" || theme === "dark" ? theme : "auto"}
        onConversation={onConversation}
      />,
    );
  }
}

/** A browser may refuse storage to a page; then a reload begins a new conversation. */
function remember(key: string, id: string): void {
  try {
    sessionStorage.setItem(key, id);
  } catch {
    return;
  }
}

function remembered(key: string): string | null {
  try {
    return sessionStorage.getItem(key);
  } catch {
    return null;
  }
}

if (!customElements.get("turnkeep-chat")) customElements.define("turnkeep-chat", TurnkeepChatElement);
