/** The list of conversations at the side of the page: search, open, rename, pin, move, delete and undo. */
import { type KeyboardEvent, memo, useEffect, useId, useLayoutEffect, useMemo, useRef, useState } from "react";

import { type Conversation, waitBadge } from "@turnkeep/client";
import { byAge, type ConversationList, hitOf, snippetPieces } from "../state/conversationList";
import { pathOf, type Route } from "../state/route";
import { words } from "../words";
import { useSelect, useServices } from "./context";
import { Icon } from "./Icon";

const SEARCH_PAUSE_MS = 180;
const UNDO_MS = 12_000;
const NEAR_END_PX = 400;
export const MAX_FOLDER_CHARS = 100;

export const ConversationNav = memo(function ConversationNav({ onChosen }: { onChosen: () => void }) {
  const { navigation, conversations } = useServices();
  const shown = useSelect((state) => state.conversations);
  const current = useSelect((state) => (state.route.page === "chat" ? state.route.conversationId : null));
  const groups = useMemo(() => (shown.query ? [{ age: null, items: [...shown.items] }] : byAge(shown.items, new Date())), [shown.items, shown.query]);
  const list = useRef<HTMLDivElement>(null);

  // A list that is too short to scroll loads more by itself.
  useEffect(() => {
    const element = list.current;
    if (element && shown.cursor && element.scrollHeight <= element.clientHeight + NEAR_END_PX) void conversations.loadMore();
  }, [navigation, conversations, shown.items, shown.cursor]);

  // The results of a search are read from the first one on, and so is the list after it.
  useLayoutEffect(() => {
    if (list.current) list.current.scrollTop = 0;
  }, [shown.query]);

  return (
    <nav className="conversations" aria-label={words.conversations.label} onKeyDown={(event) => moveInList(event, shown)}>
      <div className="conversations-head">
        <a
          className="new-conversation"
          href="/"
          onClick={(event) => {
            if (event.metaKey || event.ctrlKey) return;
            event.preventDefault();
            navigation.go({ page: "chat", conversationId: null });
            onChosen();
          }}
        >
          <Icon name="plus" />
          {words.conversations.begin}
        </a>
        <Search />
      </div>
      <div
        className="conversations-list"
        ref={list}
        onScroll={(event) => {
          const { scrollTop, clientHeight, scrollHeight } = event.currentTarget;
          if (scrollHeight - scrollTop - clientHeight < NEAR_END_PX) void conversations.loadMore();
        }}
      >
        {!shown.query && <Pinned current={current} onChosen={onChosen} />}
        {!shown.query && shown.folders.map(({ name }) => <FolderSection key={name} name={name} current={current} onChosen={onChosen} />)}
        {groups.map(({ age, items }) => (
          <section key={age ?? "found"} aria-label={age ? words.conversations.ages[age] : undefined}>
            {age && <h2>{words.conversations.ages[age]}</h2>}
            <ul>
              {items.map((one) => (
                <Entry key={one.id} conversation={one} query={shown.query} isCurrent={one.id === current} onChosen={onChosen} />
              ))}
            </ul>
          </section>
        ))}
        {shown.status === "ready" && !shown.items.length && (shown.query || !(shown.pinned.length + shown.folders.length)) && (
          <p className="conversations-note">{shown.query ? words.conversations.noneFound(shown.query) : words.conversations.none}</p>
        )}
        {shown.status === "failed" && (
          <p className="conversations-note">
            {words.conversations.failed}{" "}
            <button type="button" className="link" onClick={() => void conversations.search(shown.query)}>
              {words.retry}
            </button>
          </p>
        )}
        {shown.isLoadingMore && <p className="conversations-note">{words.conversations.more}</p>}
      </div>
      <div className="visually-hidden" role="status">
        {shown.query && shown.status === "ready" ? words.conversations.found(shown.items.length) : ""}
      </div>
      <Removed />
    </nav>
  );
});

/** The arrows move between the search field and the conversations. Enter in the field opens the first one. */
function moveInList(event: KeyboardEvent<HTMLElement>, { query, status }: ConversationList): void {
  const field = event.currentTarget.querySelector<HTMLInputElement>("#search");
  const links = [...event.currentTarget.querySelectorAll<HTMLElement>(".entry > a")];
  const places = [...event.currentTarget.querySelectorAll<HTMLElement>("#search, .folder-toggle, .entry > a")];
  const at = places.findIndex((place) => place === event.target);
  if (at < 0 || event.ctrlKey || event.metaKey || event.altKey || event.nativeEvent.isComposing) return;
  const by = { ArrowDown: 1, ArrowUp: -1 }[event.key];
  if (by !== undefined) {
    event.preventDefault();
    places[at + by]?.focus();
  } else if (event.key === "Enter" && event.target === field && status === "ready" && field?.value.trim() === query) links[0]?.click();
}

interface GroupProps {
  current: string | null;
  onChosen: () => void;
}

/** Pinned conversations, the last changed first. */
function Pinned({ current, onChosen }: GroupProps) {
  const pinned = useSelect((state) => state.conversations.pinned);
  if (!pinned.length) return null;
  return (
    <section aria-label={words.conversations.pinned}>
      <h2>{words.conversations.pinned}</h2>
      <ul>
        {pinned.map((one) => (
          <Entry key={one.id} conversation={one} query="" isCurrent={one.id === current} onChosen={onChosen} />
        ))}
      </ul>
    </section>
  );
}

/** A folder. It loads its conversations when it is opened. */
function FolderSection({ name, current, onChosen }: GroupProps & { name: string }) {
  const { conversations } = useServices();
  const [isOpen, setIsOpen] = useState(() => conversations.openFolders.includes(name));
  const [isRenaming, setIsRenaming] = useState(false);
  const filed = useSelect((state) => state.conversations.filed);
  const cursor = useSelect((state) => state.conversations.folderCursors[name]);
  const items = useMemo(() => filed.filter((one) => one.folder === name), [filed, name]);
  const list = useId();
  const toggle = () => {
    conversations.showFolder(name, !isOpen);
    setIsOpen(!isOpen);
  };
  return (
    <section className="folder" aria-label={words.conversations.folder(name)}>
      {isRenaming ? (
        <div className="folder-head">
          <TitleField
            title={name}
            maxLength={MAX_FOLDER_CHARS}
            label={words.conversations.folderName}
            onDone={(value) => {
              setIsRenaming(false);
              if (value !== null && value !== name) void conversations.renameFolder(name, value);
            }}
          />
        </div>
      ) : (
        <h2 className="folder-head">
          <button type="button" className="folder-toggle" aria-expanded={isOpen} aria-controls={list} onClick={toggle} onKeyDown={(event) => event.key === "F2" && setIsRenaming(true)}>
            <Icon name={isOpen ? "down" : "right"} />
            <span dir="auto">{name}</span>
          </button>
          <span className="entry-tools">
            <button type="button" className="tool is-small" onClick={() => setIsRenaming(true)} aria-label={words.conversations.renameFolder(name)} title={words.menu.rename}>
              <Icon name="pencil" />
            </button>
            <button
              type="button"
              className="tool is-small"
              onClick={() => confirm(words.conversations.removeFolderSure(name)) && void conversations.renameFolder(name, null)}
              aria-label={words.conversations.removeFolder(name)}
              title={words.remove}
            >
              <Icon name="close" />
            </button>
          </span>
        </h2>
      )}
      <div id={list} hidden={!isOpen}>
        <ul>
          {items.map((one) => (
            <Entry key={one.id} conversation={one} query="" isCurrent={one.id === current} onChosen={onChosen} />
          ))}
        </ul>
        {cursor && (
          <button type="button" className="link conversations-note" onClick={() => void conversations.loadFolder(name, { isMore: true })}>
            {words.conversations.moreInFolder}
          </button>
        )}
      </div>
    </section>
  );
}

function Search() {
  const { conversations } = useServices();
  const [text, setText] = useState("");
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  const search = (query: string) => {
    setText(query);
    clearTimeout(timer.current ?? undefined);
    timer.current = setTimeout(() => void conversations.search(query.trim()), SEARCH_PAUSE_MS);
  };
  return (
    <div className="search">
      <Icon name="search" />
      <input
        id="search"
        type="search"
        value={text}
        placeholder={words.conversations.search}
        aria-label={words.conversations.search}
        onChange={(event) => search(event.target.value)}
        onKeyDown={(event) => {
          if (event.key !== "Escape" || !text) return;
          event.stopPropagation();
          search("");
        }}
      />
      {text && (
        <button type="button" className="tool is-small" onClick={() => search("")} aria-label={words.conversations.clear}>
          <Icon name="close" />
        </button>
      )}
    </div>
  );
}

interface EntryProps {
  conversation: Conversation;
  /** The search that found it; empty in the list of all. */
  query: string;
  isCurrent: boolean;
  onChosen: () => void;
}

const Entry = memo(function Entry({ conversation, query, isCurrent, onChosen }: EntryProps) {
  const { navigation, conversations } = useServices();
  const [isRenaming, setIsRenaming] = useState(false);
  const waits = useSelect((state) => waitBadge(conversation, state.threads[conversation.id], state.me));
  const title = titleOf(conversation);
  // The one in view is read in a moment.
  const isUnread = conversation.is_unread === true && !isCurrent;
  const hit = hitOf(conversation, query);
  const route: Route = { page: "chat", conversationId: conversation.id, ...(hit ? { passage: hit } : {}) };
  const pin = () => void conversations.pin(conversation.id, !conversation.is_pinned);
  const move = () => conversations.askFolder(conversation.id);
  const remove = () => void conversations.remove(conversation.id);
  if (isRenaming)
    return (
      <li className="entry is-renaming">
        <TitleField title={conversation.title ?? conversation.preview ?? ""} onDone={(value) => {
          setIsRenaming(false);
          if (value !== null && value !== conversation.title) void conversations.rename(conversation.id, value);
        }} />
      </li>
    );
  return (
    <li className={["entry", isCurrent && "is-current", isUnread && "is-unread"].filter(Boolean).join(" ")}>
      <a
        href={pathOf(route)}
        aria-current={isCurrent ? "page" : undefined}
        onClick={(event) => {
          if (event.metaKey || event.ctrlKey || event.shiftKey) return;
          event.preventDefault();
          navigation.go(route);
          onChosen();
        }}
        onDoubleClick={() => setIsRenaming(true)}
        aria-keyshortcuts="F2 P M Delete"
        onKeyDown={(event) => {
          const act = keyAction(event, { rename: () => setIsRenaming(true), pin, move, remove });
          if (!act) return;
          event.preventDefault();
          event.stopPropagation();
          act();
        }}
      >
        <span className="entry-title" dir="auto">
          {title}
        </span>
        {waits && <span className={waits === "yours" ? "entry-badge is-yours" : "entry-badge"}>{words.conversations.waits[waits]}</span>}
        {isUnread && !conversation.running_turn && <span className="unread" role="img" aria-label={words.conversations.unread} />}
        {conversation.running_turn && !waits && <span className="pulse" role="img" aria-label={words.conversations.running} />}
        {conversation.snippet && (
          <span className="entry-snippet" dir="auto">
            {snippetPieces(conversation.snippet, query).map((piece, at) => (piece.isMatch ? <mark key={at}>{piece.text}</mark> : piece.text))}
          </span>
        )}
      </a>
      <span className="entry-tools">
        <button type="button" className="tool is-small only-wide" onClick={pin} aria-pressed={conversation.is_pinned ?? false} aria-label={words.conversations.pin(title)} title={conversation.is_pinned ? words.menu.unpin : words.menu.pin}>
          <Icon name="pin" />
        </button>
        <button type="button" className="tool is-small only-wide" onClick={move} aria-label={words.conversations.move(title)} title={words.menu.move}>
          <Icon name="folder" />
        </button>
        <button type="button" className="tool is-small" onClick={() => setIsRenaming(true)} aria-label={words.conversations.rename(title)} title={words.menu.rename}>
          <Icon name="pencil" />
        </button>
        <button type="button" className="tool is-small" onClick={remove} aria-label={words.conversations.delete(title)} title={words.menu.delete}>
          <Icon name="trash" />
        </button>
      </span>
    </li>
  );
});

/** What a key does to the conversation that has the focus in the list. */
function keyAction(event: KeyboardEvent, { rename, pin, move, remove }: Record<"rename" | "pin" | "move" | "remove", () => void>): (() => void) | undefined {
  if (event.ctrlKey || event.metaKey || event.altKey || event.shiftKey || event.nativeEvent.isComposing) return undefined;
  return { F2: rename, p: pin, m: move, Delete: remove }[event.key];
}

/** The field for a new title. Enter, or leaving the field, saves it; Escape keeps the old one. */
export function TitleField({ title, maxLength = 200, label = words.conversations.renameLabel, onDone }: { title: string; maxLength?: number; label?: string; onDone: (title: string | null) => void }) {
  const [value, setValue] = useState(title);
  const isDone = useRef(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.select(), []);
  useFocusAfterRename(field);
  const done = (result: string | null) => {
    if (isDone.current) return;
    isDone.current = true;
    onDone(result);
  };
  return (
    <input
      ref={field}
      className="title-field"
      dir="auto"
      value={value}
      maxLength={maxLength}
      aria-label={label}
      onChange={(event) => setValue(event.target.value)}
      onBlur={() => done(value.trim() || null)}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== "Escape") return;
        // Escape closes only the field, not the list around it. Enter must not press the button that gets the focus next.
        event.stopPropagation();
        event.preventDefault();
        done(event.key === "Enter" ? value.trim() || null : null);
      }}
    />
  );
}

/** After the field is closed, the focus goes to the conversation in the list, or to the menu. */
function useFocusAfterRename(field: { current: HTMLElement | null }): void {
  useLayoutEffect(() => {
    const element = field.current;
    const place = element?.closest("li, header, .folder");
    return () => {
      if (element && document.activeElement === element) queueMicrotask(() => place?.querySelector<HTMLElement>("a, summary, .folder-toggle")?.focus());
    };
  }, [field]);
}

/** The conversation that was just deleted, while it can be restored with one click. */
function Removed() {
  const { conversations } = useServices();
  const removed = useSelect((state) => state.conversations.removed);
  useEffect(() => {
    if (!removed) return undefined;
    const timer = setTimeout(() => conversations.forgetRemoved(), UNDO_MS);
    return () => clearTimeout(timer);
  }, [conversations, removed]);
  return (
    <div className="removed" role="status">
      {removed && (
        <div className="removed-note">
          <span>{words.conversations.deleted(titleOf(removed))}</span>
          <button type="button" className="link" onClick={() => void conversations.restore()}>
            {words.conversations.undo}
          </button>
        </div>
      )}
    </div>
  );
}

export const titleOf = (conversation: Conversation): string => conversation.title ?? conversation.preview ?? words.conversations.untitled;
