/** A chat with a Turnkeep server, as one component. */
import { type FilePart, isBusy, type MessageRow, openCalls, openRows, type Part, settledRows, shownParts, Turnkeep, type TurnDisplay } from "@turnkeep/client";
import { type FormEvent, Fragment, type KeyboardEvent, memo, type ReactNode, useEffect, useLayoutEffect, useMemo, useRef, useState, useSyncExternalStore } from "react";

import { Chat, type ChatState } from "./chat.js";
import { defaultRenderers, type Renderers } from "./renderers.js";
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
  return (
    <section className={["tk-chat", className].filter(Boolean).join(" ")} data-theme={theme} aria-label={words.chat}>
      <Rows client={client} chat={chat} state={state} words={words} renderers={renderers} />
      {state.isReconnecting && (
        <p className="tk-notice" role="status">
          {words.reconnecting}
        </p>
      )}
      <Composer chat={chat} isBusy={isBusy(state.thread)} words={words} />
    </section>
  );
}

interface Shown {
  client: Turnkeep;
  chat: Chat;
  words: Words;
  renderers: Renderers;
}

function Rows({ state, ...shown }: Shown & { state: ChatState }): ReactNode {
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
  if (thread.status === "missing") return <p className="tk-notice">{words.missing}</p>;
  return (
    <div ref={list} className="tk-messages" onScroll={onScroll} role="log" aria-busy={thread.status === "loading"} tabIndex={0}>
      {thread.status === "loading" && <p className="tk-notice">{words.loading}</p>}
      {thread.status === "failed" && (
        <p className="tk-notice is-error" role="alert">
          {thread.error}
        </p>
      )}
      {[...settledRows(thread), ...openRows(thread)].map((row) => (
        <Row key={row.key} row={row} state={row.kind === "live" ? state : null} {...shown} />
      ))}
    </div>
  );
}

const Row = memo(function Row({ row, state, ...shown }: Shown & { row: MessageRow; state: ChatState | null }): ReactNode {
  const { chat, words } = shown;
  switch (row.kind) {
    case "older":
      return (
        <button type="button" className="tk-older" onClick={() => void chat.loadOlder()}>
          {words.older}
        </button>
      );
    case "message":
      return (
        <Article role={row.message.role} words={words}>
          <Parts parts={row.message.content} {...shown} />
          <Files files={row.message.attachments} {...shown} />
          {row.message.role === "assistant" && <Ending status={row.message.status} error={row.message.error} words={words} />}
          {row.message.sources.length > 0 && <shown.renderers.sources sources={row.message.sources} words={words} />}
        </Article>
      );
    case "live":
      return state && <Live turn={row.turn} state={state} {...shown} />;
    case "ending":
      return <Ending status={row.status} error={row.failure} words={words} />;
    case "outgoing":
      return (
        <Article role="user" words={words}>
          <p>{row.outgoing.text}</p>
          {row.outgoing.status === "refused" ? (
            <p className="tk-notice is-error" role="alert">
              {row.outgoing.error?.message}{" "}
              <button type="button" onClick={() => void chat.sendAgain(row.outgoing.key)}>
                {words.again}
              </button>
            </p>
          ) : (
            <p className="tk-notice">{row.outgoing.status === "queued" ? words.queued : words.sending}</p>
          )}
        </Article>
      );
    default:
      return row satisfies never;
  }
});

function Live({ turn, state, ...shown }: Shown & { turn: TurnDisplay; state: ChatState }): ReactNode {
  const { chat, words, renderers } = shown;
  const calls = turn.wait ? openCalls(state.thread, turn.wait) : [];
  const parts = shownParts(turn);
  return (
    <Article role="assistant" words={words} isBusy>
      <Parts parts={parts} isGrowing {...shown} />
      {parts.length === 0 && !turn.wait && <p className="tk-waiting">{words.waiting}</p>}
      {calls.length > 0 && <renderers.approval calls={calls} words={words} decide={(decision, id) => void chat.decide(decision, id)} />}
      {turn.wait && turn.wait.clientCalls.length > 0 && calls.length === 0 && <p className="tk-notice">{words.clientTools}</p>}
      {turn.sources.length > 0 && <renderers.sources sources={turn.sources} words={words} />}
    </Article>
  );
}

function Article({ role, words, isBusy = false, children }: { role: string; words: Words; isBusy?: boolean; children: ReactNode }): ReactNode {
  return (
    <article className={`tk-message is-${role}`} aria-label={role === "user" ? words.you : words.assistant} aria-busy={isBusy}>
      {children}
    </article>
  );
}

function Parts({ parts, isGrowing = false, ...shown }: Shown & { parts: readonly Part[]; isGrowing?: boolean }): ReactNode {
  const { renderers, words } = shown;
  return parts.map((part, at) => {
    const isLast = isGrowing && at === parts.length - 1;
    switch (part.type) {
      case "text":
        return <renderers.text key={at} text={part.text} isGrowing={isLast} words={words} />;
      case "reasoning":
        return <renderers.reasoning key={at} text={part.text} isGrowing={isLast} words={words} />;
      case "step":
        return <renderers.step key={at} step={part} words={words} />;
      case "file":
        return <Files key={at} files={[part]} {...shown} />;
      default:
        return <Fragment key={at}>{part satisfies never}</Fragment>;
    }
  });
}

function Files({ files, client, renderers, words }: Shown & { files: readonly Omit<FilePart, "type">[] }): ReactNode {
  return files.map((file) => {
    const download = () => void save(client, file.file_id, file.name);
    return <renderers.file key={file.file_id} file={{ ...file, type: "file" }} words={words} download={download} />;
  });
}

/** Bytes need the token, so a plain link does not lead to them. */
async function save(client: Turnkeep, id: string, name: string): Promise<void> {
  const url = URL.createObjectURL(await client.files.read(id));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function Ending({ status, error, words }: { status: string; error: { message: string } | null; words: Words }): ReactNode {
  if (status === "cancelled") return <p className="tk-notice">{words.stopped}</p>;
  return status === "failed" && error ? <p className="tk-notice is-error">{error.message}</p> : null;
}

function Composer({ chat, isBusy, words }: { chat: Chat; isBusy: boolean; words: Words }): ReactNode {
  const [text, setText] = useState("");
  const [files, setFiles] = useState<readonly File[]>([]);
  const picker = useRef<HTMLInputElement>(null);
  const canSend = text.trim() !== "" || files.length > 0;
  const send = (event?: FormEvent) => {
    event?.preventDefault();
    if (!canSend) return;
    void chat.send(text.trim(), files);
    setText("");
    setFiles([]);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    send();
  };
  return (
    <form className="tk-composer" onSubmit={send}>
      {files.map((file, at) => (
        <button key={at} type="button" className="tk-file" aria-label={words.remove(file.name)} onClick={() => setFiles(files.filter((one) => one !== file))}>
          {file.name} ×
        </button>
      ))}
      <textarea value={text} rows={2} aria-label={words.write} placeholder={words.write} onChange={(event) => setText(event.target.value)} onKeyDown={onKeyDown} />
      <input
        ref={picker}
        type="file"
        multiple
        hidden
        onChange={(event) => {
          setFiles([...files, ...(event.target.files ?? [])]);
          event.target.value = "";
        }}
      />
      <button type="button" aria-label={words.attach} title={words.attach} onClick={() => picker.current?.click()}>
        +
      </button>
      {isBusy && (
        <button type="button" onClick={() => void chat.stop()}>
          {words.stop}
        </button>
      )}
      <button type="submit" className="tk-send" disabled={!canSend}>
        {words.send}
      </button>
    </form>
  );
}
