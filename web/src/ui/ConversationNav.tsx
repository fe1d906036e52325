/** The list of conversations at the side of the page: search, open, rename, delete and undo. */
import { memo, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";

import { byAge, snippetPieces } from "../state/conversationList";
import { pathOf } from "../state/route";
import type { Conversation } from "../wire/types";
import { words } from "../words";
import { useSelect, useServices } from "./context";
import { Icon } from "./Icon";

const SEARCH_PAUSE_MS = 180;
const UNDO_MS = 12_000;
const NEAR_END_PX = 400;

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

  return (
    <nav className="conversations" aria-label={words.conversations.label}>
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
        {groups.map(({ age, items }) => (
          <section key={age ?? "found"} aria-label={age ? words.conversations.ages[age] : undefined}>
            {age && <h2>{words.conversations.ages[age]}</h2>}
            <ul>
              {items.map((one) => (
                <Entry key={one.id} conversation={one} isCurrent={one.id === current} onChosen={onChosen} />
              ))}
            </ul>
          </section>
        ))}
        {shown.status === "ready" && !shown.items.length && (
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
  isCurrent: boolean;
  onChosen: () => void;
}

const Entry = memo(function Entry({ conversation, isCurrent, onChosen }: EntryProps) {
  const { navigation, conversations } = useServices();
  const [isRenaming, setIsRenaming] = useState(false);
  const title = titleOf(conversation);
  const route = { page: "chat", conversationId: conversation.id } as const;
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
    <li className={isCurrent ? "entry is-current" : "entry"}>
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
      >
        <span className="entry-title">{title}</span>
        {conversation.running_turn && <span className="pulse" role="img" aria-label={words.conversations.running} />}
        {conversation.snippet && (
          <span className="entry-snippet">
            {snippetPieces(conversation.snippet).map((piece, at) => (piece.isMatch ? <mark key={at}>{piece.text}</mark> : piece.text))}
          </span>
        )}
      </a>
      <span className="entry-tools">
        <button type="button" className="tool is-small" onClick={() => setIsRenaming(true)} aria-label={words.conversations.rename(title)} title={words.menu.rename}>
          <Icon name="pencil" />
        </button>
        <button type="button" className="tool is-small" onClick={() => void conversations.remove(conversation.id)} aria-label={words.conversations.delete(title)} title={words.menu.delete}>
          <Icon name="trash" />
        </button>
      </span>
    </li>
  );
});

/** The field for a new title. Enter, or leaving the field, saves it; Escape keeps the old one. */
export function TitleField({ title, onDone }: { title: string; onDone: (title: string | null) => void }) {
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
      value={value}
      maxLength={200}
      aria-label={words.conversations.renameLabel}
      onChange={(event) => setValue(event.target.value)}
      onBlur={() => done(value.trim() || null)}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== "Escape") return;
        // Escape closes only the field, not the list around it.
        event.stopPropagation();
        done(event.key === "Enter" ? value.trim() || null : null);
      }}
    />
  );
}

/** After the field is closed, the focus goes to the conversation in the list, or to the menu. */
function useFocusAfterRename(field: { current: HTMLElement | null }): void {
  useLayoutEffect(() => {
    const element = field.current;
    const place = element?.closest("li, header");
    return () => {
      if (element && document.activeElement === element) queueMicrotask(() => place?.querySelector<HTMLElement>("a, summary")?.focus());
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
