/** One conversation: its title and menu, its messages, and the composer. Files can be dropped anywhere on it. */
import { type DragEvent, lazy, memo, type ReactNode, Suspense, useCallback, useEffect, useRef, useState } from "react";

import type { Agent, Thread } from "@turnkeep/client";
import { exportConversation, printConversation } from "../effects/export";
import type { Passage } from "../state/route";
import { allListed } from "../state/conversationList";
import { approvalCount, unreadCount } from "../state/selectors";
import { NEW } from "../state/state";
import { sizeInWords, words } from "../words";
import { brandName, longestShareDays } from "./Brand";
import { Avatar } from "./Avatar";
import { BehaviourDialog, Composer, type ModelChoice } from "./composer/Composer";
import { useSelect, useServices } from "./context";
import { TitleField, titleOf } from "./ConversationNav";
import { Icon } from "./Icon";
import { RouteLink } from "./RouteLink";
import { loadMarkdown } from "./markdown/LazyMarkdown";
import { MessageList } from "./thread/MessageList";

const ShareDialog = lazy(() => import("./share/ShareDialog"));

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
  const wanted = useSelect((state) => (state.route.page === "chat" ? (state.route.agentId ?? null) : null));
  const [choice, setChoice] = useState<ModelChoice>({ agentId: host?.agentId ?? wanted, model: null });
  // The address names an agent: it is chosen, and the model is its own.
  useEffect(() => {
    if (wanted !== null) setChoice({ agentId: wanted, model: null });
  }, [wanted]);
  const drop = useFileDrop((files, target) => {
    const turnId = target.closest<HTMLElement>("[data-editing]")?.dataset["editing"];
    if (turnId) branches.attachFiles(threadId, turnId, files);
    else uploads.attach(threadId, files);
  });
  const [isFinding, find, endFind] = useFind(threadId);
  const prepare = () => void loadMarkdown().catch(() => undefined);
  useEffect(() => {
    if (threadId !== NEW) prepare();
  }, [threadId]);
  return (
    <main className="main" onInput={prepare} {...drop.handlers}>
      <ConversationHead threadId={threadId} lead={lead} tools={tools} onFind={find} />
      <Body threadId={threadId} passage={passage} choice={choice} isFinding={isFinding} onFound={endFind} />
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

/** Whether words are being found in the conversation. Ctrl+F begins it; pressed again, it is the browser's own. */
function useFind(threadId: string): [boolean, () => void, () => void] {
  const [finding, setFinding] = useState<string | null>(null);
  const isFinding = finding === threadId;
  const find = useCallback(() => setFinding(threadId), [threadId]);
  const end = useCallback(() => {
    setFinding(null);
    document.getElementById("message")?.focus();
  }, []);
  useEffect(() => {
    if (threadId === NEW) return undefined;
    const onKeyDown = (event: KeyboardEvent) => {
      if (event.key.toLowerCase() !== "f" || !(event.ctrlKey || event.metaKey) || event.altKey || event.shiftKey) return;
      if (document.querySelector("dialog[open]") || document.activeElement?.closest(".find, .panel")) return;
      event.preventDefault();
      find();
      document.querySelector<HTMLInputElement>(".find input")?.select();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, [threadId, find]);
  return [isFinding, find, end];
}

interface BodyProps {
  threadId: string;
  passage: Passage | undefined;
  choice: ModelChoice;
  isFinding: boolean;
  onFound: () => void;
}

const Body = memo(function Body({ threadId, passage, choice, isFinding, onFound }: BodyProps) {
  const { threads, ratings } = useServices();
  const thread = useSelect((state) => state.threads[threadId]);
  const hasAnswers = thread?.messages.some((message) => message.role === "assistant") ?? false;
  useEffect(() => {
    if (hasAnswers && threadId !== NEW) void ratings.load(threadId);
  }, [ratings, threadId, hasAnswers]);
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
  return isEmpty ? <Greeting choice={choiceOf(thread)} /> : <MessageList key={threadId} thread={thread} passage={passage} isFinding={isFinding} onFound={onFound} />;
});

/** The choice of a conversation that has no messages yet. */
const choiceOf = ({ conversation }: Thread): ModelChoice => ({ agentId: conversation?.agent_id ?? null, model: conversation?.model ?? null });

/** What an empty conversation shows: questions of the agent that is chosen, or of the demo model, which answer as chosen. */
function Greeting({ choice: { agentId, model } }: { choice: ModelChoice }) {
  const { outbox, host } = useServices();
  const agents = useSelect((state) => state.agents);
  const agent = agents.find((one) => one.id === agentId);
  const fallback = useSelect((state) => state.me?.model);
  const isDemo = (model ?? agent?.model ?? fallback) === "demo";
  const ideas: readonly string[] = agent?.starters?.length ? agent.starters : isDemo ? words.thread.ideas : [];
  return (
    <div className="greeting">
      {agent && !host ? (
        <>
          <Avatar agent={agent} isLarge />
          <h2 dir="auto">{agent.name}</h2>
          {agent.description && <p dir="auto">{agent.description}</p>}
        </>
      ) : (
        <>
          <h2>{words.thread.greeting}</h2>
          <p>{words.thread.hint}</p>
        </>
      )}
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
      {!agent && !host && agents.length > 0 && <AgentCards agents={agents} />}
    </div>
  );
}

/** More agents than these are in the settings, and in the field of the composer. */
const SHOWN_AGENTS = 6;

function AgentCards({ agents }: { agents: readonly Agent[] }) {
  return (
    <section className="agent-cards" aria-label={words.thread.agents}>
      <ul>
        {agents.slice(0, SHOWN_AGENTS).map((agent) => (
          <li key={agent.id}>
            <RouteLink className="agent-card" route={{ page: "chat", conversationId: null, agentId: agent.id }}>
              <Avatar agent={agent} />
              <span className="agent-card-text" dir="auto">
                <strong>{agent.name}</strong>
                {agent.description && <span>{agent.description}</span>}
              </span>
            </RouteLink>
          </li>
        ))}
      </ul>
      {agents.length > SHOWN_AGENTS && <RouteLink route={{ page: "settings", section: "agents" }}>{words.thread.allAgents(agents.length)}</RouteLink>}
    </section>
  );
}

const ConversationHead = memo(function ConversationHead({ threadId, lead, tools, onFind }: Props & { onFind: () => void }) {
  const { notices, conversations, threads, host } = useServices();
  const conversation = useSelect((state) => state.threads[threadId]?.conversation ?? null);
  const listed = useSelect((state) => allListed(state.conversations).find((one) => one.id === threadId) ?? null);
  const waits = useSelect(approvalCount);
  const unread = useSelect(unreadCount);
  const [isRenaming, setIsRenaming] = useState(false);
  const [isSharing, setIsSharing] = useState(false);
  const [isChanging, setIsChanging] = useState(false);
  const shown = listed ?? conversation;
  const title = shown ? titleOf(shown) : words.conversations.begin;
  useEffect(() => {
    // A number says that answers wait for this user, or were not seen yet, also to one who looks at another tab.
    const count = waits + unread ? `(${waits + unread}) ` : "";
    document.title = count + (shown ? `${title} · ${brandName()}` : brandName());
  }, [shown, title, waits, unread]);
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
          {!host && longestShareDays() > 0 && (
            <button type="button" onClick={() => setIsSharing(true)}>
              <Icon name="share" />
              {words.menu.share}
            </button>
          )}
          <button type="button" onClick={() => void conversations.pin(shown.id, !shown.is_pinned)}>
            <Icon name="pin" />
            {shown.is_pinned ? words.menu.unpin : words.menu.pin}
          </button>
          <button type="button" onClick={() => conversations.askFolder(shown.id)}>
            <Icon name="folder" />
            {words.menu.move}
          </button>
          <button type="button" onClick={onFind}>
            <Icon name="search" />
            {words.menu.find}
          </button>
          <button type="button" onClick={() => setIsChanging(true)}>
            <Icon name="gear" />
            {words.menu.behaviour}
          </button>
          <button type="button" onClick={() => void exportConversation(shown.id, "markdown").catch((error: unknown) => notices.report(error))}>
            <Icon name="download" />
            {words.menu.exportMarkdown}
          </button>
          <button type="button" onClick={() => void exportConversation(shown.id, "json").catch((error: unknown) => notices.report(error))}>
            <Icon name="download" />
            {words.menu.exportJson}
          </button>
          <RouteLink route={{ page: "chat", conversationId: shown.id, item: { kind: "files" } }}>
            <Icon name="clip" />
            {words.files.ofConversation}
          </RouteLink>
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
      {shown && isSharing && (
        <Suspense fallback={null}>
          <ShareDialog conversationId={shown.id} onClose={() => setIsSharing(false)} />
        </Suspense>
      )}
      {isChanging && shown && (
        <Suspense fallback={null}>
          <BehaviourDialog id={shown.id} onClose={() => setIsChanging(false)} />
        </Suspense>
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
