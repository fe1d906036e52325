/** A chat with a Turnkeep server, as one component. */
import { isBusy, openRows, settledRows, Turnkeep } from "@turnkeep/client";
import { memo, type ReactNode, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";

import { Chat, type ChatState, type Draft } from "./chat.js";
import { Composer, EMPTY } from "./forms.js";
import { defaultRenderers, type Renderers } from "./renderers.js";
import { type Focus, Row, type Shown } from "./rows.js";
import { defaultWords, type Words } from "./words.js";

export interface TurnkeepChatProps {
  /** The address of the server. Without one, the server of the page. */
  baseUrl?: string;
  /** A user token, or a function that gets one. It is called again when the server does not take the token any more. */
  token?: string | (() => string | Promise<string>);
  /** The agent of new conversations. */
  agent?: string;
  /** The conversation to show. Without one, a new one begins with the first message. */
  conversationId?: string | null;
  /** Whether a new conversation takes the place of one that does not exist any more, or is not the user's. */
  beginsAnew?: boolean;
  onConversation?(id: string): void;
  /** `auto` follows the system. Colours, fonts and corners are CSS variables: `--tk-accent` and others. */
  theme?: "light" | "dark" | "auto";
  words?: Partial<Words>;
  renderers?: Partial<Renderers>;
  className?: string;
}

export function TurnkeepChat({ baseUrl, token, agent, conversationId, beginsAnew = false, onConversation, theme = "auto", words: someWords, renderers: someRenderers, className }: TurnkeepChatProps): ReactNode {
  const words = useMemo(() => ({ ...defaultWords, ...someWords }), [someWords]);
  const renderers = useMemo(() => ({ ...defaultRenderers, ...someRenderers }), [someRenderers]);
  // A function that is written in place is another one at each drawing. It shall not begin the chat anew.
  const latest = useRef({ token, onConversation });
  latest.current = { token, onConversation };
  const hasToken = token !== undefined;
  const client = useMemo(() => {
    const current = async () => {
      const { token: now } = latest.current;
      return typeof now === "function" ? await now() : (now ?? "");
    };
    return new Turnkeep({ ...(baseUrl === undefined ? {} : { baseUrl }), ...(hasToken ? { token: current } : {}) });
  }, [baseUrl, hasToken]);
  // Another conversation begins another chat. The one that this chat itself has reported is its own.
  const wanted = conversationId ?? null;
  const shown = useRef({ wanted, begun: wanted, reported: null as string | null, count: 0 });
  if (wanted !== shown.current.wanted) {
    const isOwn = wanted !== null && wanted === shown.current.reported;
    shown.current = isOwn ? { ...shown.current, wanted } : { wanted, begun: wanted, reported: null, count: shown.current.count + 1 };
  }
  const { begun, count } = shown.current;
  const chat = useMemo(() => {
    const report = (id: string) => {
      shown.current = { ...shown.current, reported: id };
      latest.current.onConversation?.(id);
    };
    return new Chat(client, { agent, conversationId: begun, beginsAnew, onConversation: report });
  }, [client, agent, begun, beginsAnew, count]);
  useEffect(() => {
    void chat.open();
    return () => chat.close();
  }, [chat]);
  const state = useSyncExternalStore(chat.subscribe, chat.get, chat.get);
  const [draft, setDraft] = useState(EMPTY);
  const onDraft = useCallback((given: Draft) => setDraft((now) => joined(now, given)), []);
  const section = useRef<HTMLElement>(null);
  const composer = useRef<HTMLTextAreaElement>(null);
  const version = useRef<{ turnId: string; isNext: boolean }>(null);
  const focus = useMemo((): Focus => ({ composer, version }), []);
  const editLast = () => [...(section.current?.querySelectorAll<HTMLElement>('[data-opens="editor"]') ?? [])].at(-1)?.click();
  return (
    <section ref={section} className={["tk-chat", className].filter(Boolean).join(" ")} data-theme={theme} aria-label={words.chat}>
      <Rows client={client} chat={chat} state={state} words={words} renderers={renderers} focus={focus} onDraft={onDraft} />
      {state.isReconnecting && (
        <p className="tk-notice is-bar" role="status">
          {words.reconnecting}
        </p>
      )}
      {state.failure !== null && (
        <p className="tk-notice is-bar is-error" role="alert">
          {state.failure}
        </p>
      )}
      <Composer chat={chat} draft={draft} onDraft={setDraft} area={composer} isBusy={isBusy(state.thread)} isLive={state.thread.live !== null} onEditLast={editLast} words={words} />
    </section>
  );
}

/** A message that is given back is put behind the one that is being written. */
const joined = (now: Draft, given: Draft): Draft => ({ text: [now.text, given.text].filter(Boolean).join("\n\n"), files: [...now.files, ...given.files] });

const Rows = memo(function Rows({ state, ...shown }: Shown & { state: ChatState }): ReactNode {
  const { words } = shown;
  const { thread } = state;
  const list = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  useLayoutEffect(() => {
    if (list.current && isAtEnd.current) list.current.scrollTop = list.current.scrollHeight;
  }, [thread]);
  const onScroll = () => {
    const { scrollTop = 0, scrollHeight = 0, clientHeight = 0 } = list.current ?? {};
    isAtEnd.current = scrollHeight - scrollTop - clientHeight < 40;
  };
  const { messages, older, steered } = thread;
  const settled = useMemo(() => settledRows({ messages, older, steered }), [messages, older, steered]);
  if (thread.status === "missing") return <p className="tk-notice is-bar">{words.missing}</p>;
  return (
    <div ref={list} className="tk-messages" onScroll={onScroll} role="log" aria-busy={thread.status === "loading"} tabIndex={0}>
      {thread.status === "loading" && <p className="tk-notice">{words.loading}</p>}
      {thread.status === "failed" && (
        <p className="tk-notice is-error" role="alert">
          {thread.error}
        </p>
      )}
      {[...settled, ...openRows(thread)].map((row) => (
        <Row key={row.key} row={row} isBusy={isBusy(thread)} state={row.kind === "live" ? state : null} {...shown} />
      ))}
    </div>
  );
});
