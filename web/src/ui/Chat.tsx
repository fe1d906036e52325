/** One conversation: its title and menu, its messages, and the composer. Files can be dropped anywhere on it. */
import { type DragEvent, memo, useEffect, useRef, useState } from "react";

import { exportConversation } from "../effects/export";
import type { Passage } from "../state/route";
import { NEW } from "../state/state";
import { sizeInWords, words } from "../words";
import { Composer } from "./composer/Composer";
import { useSelect, useServices } from "./context";
import { TitleField, titleOf } from "./ConversationNav";
import { Icon } from "./Icon";
import { MessageList } from "./thread/MessageList";

interface Props {
  threadId: string;
  onMenu: () => void;
}

/** `passage` is the cited passage that is searched in the conversation. */
export function Chat({ threadId, passage, onMenu }: Props & { passage: Passage | undefined }) {
  const { uploads, branches } = useServices();
  const me = useSelect((state) => state.me);
  const drop = useFileDrop((files, target) => {
    const turnId = target.closest<HTMLElement>("[data-editing]")?.dataset["editing"];
    if (turnId) branches.attachFiles(threadId, turnId, files);
    else uploads.attach(threadId, files);
  });
  return (
    <main className="main" {...drop.handlers}>
      <Head threadId={threadId} onMenu={onMenu} />
      <Body threadId={threadId} passage={passage} />
      <Connection />
      <div className="composer-place">
        <Composer threadId={threadId} />
      </div>
      {drop.isOver && me && (
        <div className="drop" aria-hidden="true">
          <Icon name="clip" />
          <strong>{words.composer.drop}</strong>
          <span>{words.composer.limits(me.max_files_per_message, sizeInWords(me.max_file_bytes))}</span>
        </div>
      )}
    </main>
  );
}

const Body = memo(function Body({ threadId, passage }: { threadId: string; passage: Passage | undefined }) {
  const { threads } = useServices();
  const thread = useSelect((state) => state.threads[threadId]);
  const isEmpty = !thread || (thread.status === "ready" && !thread.messages.length && !thread.outbox.length && !thread.live);
  if (threadId === NEW && isEmpty) return <Greeting />;
  if (!thread || (thread.status === "loading" && !thread.messages.length)) return <p className="centered">{words.thread.loading}</p>;
  if (thread.status === "missing") return <p className="centered">{words.thread.missing}</p>;
  if (thread.status === "failed")
    return (
      <p className="centered" role="alert">
        {words.thread.loadFailed} {thread.error}{" "}
        <button type="button" className="link" onClick={() => void threads.open(threadId)}>
          {words.retry}
        </button>
      </p>
    );
  return isEmpty ? <Greeting /> : <MessageList key={threadId} thread={thread} quote={passage?.quote} />;
});

function Greeting() {
  const { outbox } = useServices();
  const isDemo = useSelect((state) => state.me?.model === "demo");
  return (
    <div className="greeting">
      <h2>{words.thread.greeting}</h2>
      <p>{words.thread.hint}</p>
      {isDemo && (
        <ul className="ideas">
          {words.thread.ideas.map((idea) => (
            <li key={idea}>
              <button type="button" className="idea" onClick={() => void outbox.send({ text: idea, attachments: [], agentId: null, model: null, ifBusy: "reject" })}>
                {idea}
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

const Head = memo(function Head({ threadId, onMenu }: Props) {
  const { notices, conversations } = useServices();
  const conversation = useSelect((state) => state.threads[threadId]?.conversation ?? null);
  const listed = useSelect((state) => state.conversations.items.find((one) => one.id === threadId) ?? null);
  const [isRenaming, setIsRenaming] = useState(false);
  const shown = listed ?? conversation;
  const title = shown ? titleOf(shown) : words.conversations.begin;
  useEffect(() => {
    document.title = shown ? `${title} · ${words.product}` : words.product;
  }, [shown, title]);
  return (
    <header className="head">
      <button type="button" className="tool only-narrow" onClick={onMenu} aria-label={words.openMenu}>
        <Icon name="menu" />
      </button>
      {isRenaming && shown ? (
        <TitleField
          title={shown.title ?? shown.preview ?? ""}
          onDone={(value) => {
            setIsRenaming(false);
            if (value !== null && value !== shown.title) void conversations.rename(shown.id, value);
          }}
        />
      ) : (
        <h1 className={shown ? "title" : "title visually-hidden"}>{title}</h1>
      )}
      {shown && (
        <Menu>
          <button type="button" onClick={() => setIsRenaming(true)}>
            <Icon name="pencil" />
            {words.menu.rename}
          </button>
          <button type="button" onClick={() => void exportConversation(shown.id, "markdown").catch((error: unknown) => notices.report(error))}>
            <Icon name="download" />
            {words.menu.exportMarkdown}
          </button>
          <button type="button" onClick={() => void exportConversation(shown.id, "json").catch((error: unknown) => notices.report(error))}>
            <Icon name="download" />
            {words.menu.exportJson}
          </button>
          <button type="button" onClick={() => void conversations.remove(shown.id)}>
            <Icon name="trash" />
            {words.menu.delete}
          </button>
        </Menu>
      )}
    </header>
  );
});

/** A menu that closes after a choice, with Escape, and with a click outside of it. */
function Menu({ children }: { children: React.ReactNode }) {
  const menu = useRef<HTMLDetailsElement>(null);
  useEffect(() => {
    const close = (event: Event) => {
      if (menu.current && !menu.current.contains(event.target as Node)) menu.current.open = false;
    };
    document.addEventListener("pointerdown", close);
    return () => document.removeEventListener("pointerdown", close);
  }, []);
  return (
    <details
      ref={menu}
      className="menu"
      onKeyDown={(event) => {
        if (event.key !== "Escape" || !menu.current) return;
        menu.current.open = false;
        menu.current.querySelector("summary")?.focus();
      }}
    >
      <summary className="tool" aria-label={words.menu.label} title={words.menu.label}>
        <Icon name="more" />
      </summary>
      <div
        className="menu-items"
        onClick={() => {
          if (menu.current) menu.current.open = false;
        }}
      >
        {children}
      </div>
    </details>
  );
}

function Connection() {
  const connection = useSelect((state) => state.connection);
  return (
    <div className="connection" role="status">
      {connection !== "good" && <span>{words.connection[connection]}</span>}
    </div>
  );
}

/**
 * Files that are dragged over the element or dropped on it. Enter and leave events are not counted: an element that is
 * replaced under the pointer, as in a growing answer, never sends its leave event.
 */
function useFileDrop(onFiles: (files: File[], target: Element) => void) {
  const [isOver, setIsOver] = useState(false);
  const hasFiles = (event: DragEvent) => event.dataTransfer.types.includes("Files");
  return {
    isOver,
    handlers: {
      onDragOver: (event: DragEvent) => {
        if (!hasFiles(event)) return;
        event.preventDefault();
        setIsOver(true);
      },
      onDragLeave: (event: DragEvent) => {
        const to = event.relatedTarget;
        if (!(to instanceof Node) || !event.currentTarget.contains(to)) setIsOver(false);
      },
      onDrop: (event: DragEvent) => {
        if (!hasFiles(event)) return;
        event.preventDefault();
        setIsOver(false);
        onFiles([...event.dataTransfer.files], event.target as Element);
      },
    },
  };
}
