/** One conversation: its title and menu, its messages, and the composer. Files can be dropped anywhere on it. */
import { type DragEvent, memo, type ReactNode, useEffect, useRef, useState } from "react";

import type { Thread } from "@turnkeep/client";
import { exportConversation, printConversation } from "../effects/export";
import type { Passage } from "../state/route";
import { approvalCount } from "../state/selectors";
import { NEW } from "../state/state";
import { sizeInWords, words } from "../words";
import { brandName } from "./Brand";
import { Composer, type ModelChoice } from "./composer/Composer";
import { useSelect, useServices } from "./context";
import { TitleField, titleOf } from "./ConversationNav";
import { Icon } from "./Icon";
import { MessageList } from "./thread/MessageList";

interface Props {
  threadId: string;
  /** What stands before the title. */
  lead: ReactNode;
  /** Buttons behind the title, before the menu. */
  tools?: ReactNode;
}

/** `passage` is the cited passage that is searched in the conversation. */
export function Chat({ threadId, passage, lead, tools }: Props & { passage: Passage | undefined }) {
  const { uploads, branches, host } = useServices();
  const me = useSelect((state) => state.me);
  const [choice, setChoice] = useState<ModelChoice>({ agentId: host?.agentId ?? null, model: null });
  const drop = useFileDrop((files, target) => {
    const turnId = target.closest<HTMLElement>("[data-editing]")?.dataset["editing"];
    if (turnId) branches.attachFiles(threadId, turnId, files);
    else uploads.attach(threadId, files);
  });
  return (
    <main className="main" {...drop.handlers}>
      <ConversationHead threadId={threadId} lead={lead} tools={tools} />
      <Body threadId={threadId} passage={passage} choice={choice} />
      <Connection />
      <div className="composer-place">
        <Composer threadId={threadId} choice={choice} onChoice={setChoice} />
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

const Body = memo(function Body({ threadId, passage, choice }: { threadId: string; passage: Passage | undefined; choice: ModelChoice }) {
  const { threads } = useServices();
  const thread = useSelect((state) => state.threads[threadId]);
  const isEmpty = !thread || (thread.status === "ready" && !thread.messages.length && !thread.outbox.length && !thread.live);
  if (threadId === NEW && isEmpty) return <Greeting choice={choice} />;
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
  return isEmpty ? <Greeting choice={choiceOf(thread)} /> : <MessageList key={threadId} thread={thread} passage={passage} />;
});

/** The choice of a conversation that has no messages yet. */
const choiceOf = ({ conversation }: Thread): ModelChoice => ({ agentId: conversation?.agent_id ?? null, model: conversation?.model ?? null });

/** What an empty conversation shows: questions of the agent that is chosen, or of the demo model, which answer as chosen. */
function Greeting({ choice: { agentId, model } }: { choice: ModelChoice }) {
  const { outbox } = useServices();
  const agent = useSelect((state) => state.agents.find((one) => one.id === agentId));
  const fallback = useSelect((state) => state.me?.model);
  const isDemo = (model ?? agent?.model ?? fallback) === "demo";
  const ideas: readonly string[] = agent?.starters?.length ? agent.starters : isDemo ? words.thread.ideas : [];
  return (
    <div className="greeting">
      <h2>{words.thread.greeting}</h2>
      <p>{words.thread.hint}</p>
      {ideas.length > 0 && (
        <ul className="ideas">
          {ideas.map((idea) => (
            <li key={idea}>
              <button type="button" className="idea" dir="auto" onClick={() => void outbox.send({ text: idea, attachments: [], agentId, model, ifBusy: "reject" })}>
                {idea}
              </button>
            </li>
          ))}
        </ul>
      )}
    </div>
  );
}

const ConversationHead = memo(function ConversationHead({ threadId, lead, tools }: Props) {
  const { notices, conversations, threads } = useServices();
  const conversation = useSelect((state) => state.threads[threadId]?.conversation ?? null);
  const listed = useSelect((state) => state.conversations.items.find((one) => one.id === threadId) ?? null);
  const waits = useSelect(approvalCount);
  const [isRenaming, setIsRenaming] = useState(false);
  const shown = listed ?? conversation;
  const title = shown ? titleOf(shown) : words.conversations.begin;
  useEffect(() => {
    // A number says that answers wait for this user, also for a while to one who looks at another tab.
    const count = waits ? `(${waits}) ` : "";
    document.title = count + (shown ? `${title} · ${brandName()}` : brandName());
  }, [shown, title, waits]);
  return (
    <header className="head">
      {lead}
      {isRenaming && shown ? (
        <TitleField
          title={shown.title ?? shown.preview ?? ""}
          onDone={(value) => {
            setIsRenaming(false);
            if (value !== null && value !== shown.title) void conversations.rename(shown.id, value);
          }}
        />
      ) : (
        <h1 className={shown ? "title" : "title visually-hidden"} dir="auto">
          {title}
        </h1>
      )}
      {tools}
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
          <button type="button" onClick={() => void printConversation(threads, shown.id)}>
            <Icon name="print" />
            {words.menu.print}
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
function Menu({ children }: { children: ReactNode }) {
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
