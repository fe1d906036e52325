/** The list of conversations: search, begin, open, rename, delete and undo. */
import { memo, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";

import { byAge, marked } from "../../state/history";
import { pathOf } from "../../state/route";
import type { Conversation } from "../../wire/types";
import { words } from "../../words";
import { useServices, useSelect } from "../context";
import { Icon } from "../Icon";

const SEARCH_PAUSE_MS = 180;
const UNDO_MS = 12_000;
const FAR_DOWN = 400;

export const History = memo(function History({ onChosen }: { onChosen: () => void }) {
  const { navigation, conversations } = useServices();
  const history = useSelect((state) => state.history);
  const current = useSelect((state) => (state.route.page === "chat" ? state.route.conversationId : null));
  const groups = useMemo(() => (history.query ? [{ age: null, items: [...history.items] }] : byAge(history.items, new Date())), [history.items, history.query]);
  const list = useRef<HTMLDivElement>(null);

  // A short list on a tall screen cannot be scrolled, so it fills itself.
  useEffect(() => {
    const element = list.current;
    if (element && history.cursor && element.scrollHeight <= element.clientHeight + FAR_DOWN) void conversations.loadMore();
  }, [navigation, conversations, history.items, history.cursor]);

  return (
    <nav className="history" aria-label={words.history.label}>
      <div className="history-head">
        <a
          className="begin"
          href="/"
          onClick={(event) => {
            if (event.metaKey || event.ctrlKey) return;
            event.preventDefault();
            navigation.go({ page: "chat", conversationId: null });
            onChosen();
          }}
        >
          <Icon name="plus" />
          {words.history.begin}
        </a>
        <Search />
      </div>
      <div
        className="history-list"
        ref={list}
        onScroll={(event) => {
          const { scrollTop, clientHeight, scrollHeight } = event.currentTarget;
          if (scrollHeight - scrollTop - clientHeight < FAR_DOWN) void conversations.loadMore();
        }}
      >
        {groups.map(({ age, items }) => (
          <section key={age ?? "found"} aria-label={age ? words.history.ages[age] : undefined}>
            {age && <h2>{words.history.ages[age]}</h2>}
            <ul>
              {items.map((one) => (
                <Entry key={one.id} conversation={one} isCurrent={one.id === current} onChosen={onChosen} />
              ))}
            </ul>
          </section>
        ))}
        {history.status === "ready" && !history.items.length && (
          <p className="history-note">{history.query ? words.history.noneFound(history.query) : words.history.none}</p>
        )}
        {history.status === "failed" && (
          <p className="history-note">
            {words.history.failed}{" "}
            <button type="button" className="link" onClick={() => void conversations.search(history.query)}>
              {words.retry}
            </button>
          </p>
        )}
        {history.isLoadingMore && <p className="history-note">{words.history.more}</p>}
      </div>
      <div className="unseen" role="status">
        {history.query && history.status === "ready" ? words.history.found(history.items.length) : ""}
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
        placeholder={words.history.search}
        aria-label={words.history.search}
        onChange={(event) => search(event.target.value)}
        onKeyDown={(event) => {
          if (event.key !== "Escape" || !text) return;
          event.stopPropagation();
          search("");
        }}
      />
      {text && (
        <button type="button" className="tool is-small" onClick={() => search("")} aria-label={words.history.clear}>
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
        <Renaming title={conversation.title ?? conversation.preview ?? ""} onDone={(value) => {
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
        {conversation.running_turn && <span className="pulse" role="img" aria-label={words.history.running} />}
        {conversation.snippet && (
          <span className="entry-snippet">
            {marked(conversation.snippet).map((piece, at) => (piece.isMatch ? <mark key={at}>{piece.text}</mark> : piece.text))}
          </span>
        )}
      </a>
      <span className="entry-tools">
        <button type="button" className="tool is-small" onClick={() => setIsRenaming(true)} aria-label={words.history.rename(title)} title={words.menu.rename}>
          <Icon name="pencil" />
        </button>
        <button type="button" className="tool is-small" onClick={() => void conversations.remove(conversation.id)} aria-label={words.history.delete(title)} title={words.menu.delete}>
          <Icon name="trash" />
        </button>
      </span>
    </li>
  );
});

/** Enter or leaving the field keeps the new title, Escape the old one. */
export function Renaming({ title, onDone }: { title: string; onDone: (title: string | null) => void }) {
  const [value, setValue] = useState(title);
  const isDone = useRef(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.select(), []);
  useReturnedFocus(field);
  const done = (result: string | null) => {
    if (isDone.current) return;
    isDone.current = true;
    onDone(result);
  };
  return (
    <input
      ref={field}
      className="renaming"
      value={value}
      maxLength={200}
      aria-label={words.history.renameLabel}
      onChange={(event) => setValue(event.target.value)}
      onBlur={() => done(value.trim() || null)}
      onKeyDown={(event) => {
        if (event.key !== "Enter" && event.key !== "Escape") return;
        // Escape closes the field, and not the list around it.
        event.stopPropagation();
        done(event.key === "Enter" ? value.trim() || null : null);
      }}
    />
  );
}

/** The keyboard goes on where it was before the field took its place: at the conversation in the list, or at the menu. */
function useReturnedFocus(field: { current: HTMLElement | null }): void {
  useLayoutEffect(() => {
    const element = field.current;
    const place = element?.closest("li, header");
    return () => {
      if (element && document.activeElement === element) queueMicrotask(() => place?.querySelector<HTMLElement>("a, summary")?.focus());
    };
  }, [field]);
}

/** What was just deleted, for as long as one click brings it back. */
function Removed() {
  const { conversations } = useServices();
  const removed = useSelect((state) => state.history.removed);
  useEffect(() => {
    if (!removed) return undefined;
    const timer = setTimeout(() => conversations.forgetRemoved(), UNDO_MS);
    return () => clearTimeout(timer);
  }, [conversations, removed]);
  return (
    <div className="removed" role="status">
      {removed && (
        <div className="removed-note">
          <span>{words.history.deleted(titleOf(removed))}</span>
          <button type="button" className="link" onClick={() => void conversations.restore()}>
            {words.history.undo}
          </button>
        </div>
      )}
    </div>
  );
}

export const titleOf = (conversation: Conversation): string => conversation.title ?? conversation.preview ?? words.history.untitled;
