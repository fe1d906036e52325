/** The messages of a thread. Only rows in view are drawn. The list follows its end unless the reader scrolled back. */
import { lazy, memo, Suspense, useCallback, useEffect, useLayoutEffect, useMemo, useRef, useState } from "react";
import { VList, type VListHandle } from "virtua";

import { isBusy, type MessageRow, openRows, sentByThisPage, settledRows, type Thread, waitingFor } from "@turnkeep/client";
import type { Passage } from "../../state/route";
import { words } from "../../words";
import { useServices } from "../context";
import { Icon } from "../Icon";
import { OpenedProvider } from "./Disclosure";
import { PrintedRows } from "./PrintedRows";
import { ThreadRow } from "./ThreadRow";
import { useAutoScroll } from "./useAutoScroll";
import { useCitedMessage } from "./useCitedMessage";
import { useMountedRows } from "./useMountedRows";

const FindBar = lazy(() => import("./FindBar"));

/** Fewer pixels from the beginning than this load earlier messages. */
const NEAR_BEGINNING_PX = 900;

interface Props {
  thread: Thread;
  /** A passage of the message that is cited or was found, which is searched and shown. */
  passage: Passage | undefined;
  /** Whether words are being found in the conversation. */
  isFinding?: boolean;
  onFound?: () => void;
}

export const MessageList = memo(function MessageList({ thread, passage, isFinding = false, onFound = () => undefined }: Props) {
  const { threads } = useServices();
  const root = useRef<HTMLDivElement>(null);
  const list = useRef<VListHandle>(null);
  const begun = useRef("");
  const { messages, older, live, outbox, steered } = thread;
  const settled = useMemo(() => settledRows({ messages, older, steered }), [messages, older, steered]);
  const rows = useMemo(() => [...settled, ...openRows({ live, outbox })], [settled, live, outbox]);
  const busy = isBusy(thread);
  const [opened] = useState(() => new Set<string>());
  const mounted = useMountedRows(root, rows);
  const { isAtEnd, follow, toEnd, stay, onScroll: scrolled } = useAutoScroll(root, list);
  const isShifted = useIsShifted(rows[0]?.key === "older" ? rows[1]?.key : rows[0]?.key, rows.length);

  const search = useCitedMessage(thread, passage, rows, root, list, stay);

  // A message that was sent here scrolls to the end. One of another client does not.
  const outgoing = sentByThisPage(thread).length;
  const previous = useRef(outgoing);
  useLayoutEffect(() => {
    if (outgoing > previous.current) toEnd();
    else follow();
    previous.current = outgoing;
  }, [rows.length, outgoing, follow, toEnd]);

  // An answer that replaces earlier messages scrolls to the end too.
  const known = useRef({ liveId: live?.id, count: messages.length });
  useLayoutEffect(() => {
    const { liveId, count } = known.current;
    known.current = { liveId: live?.id, count: messages.length };
    if (live && live.id !== liveId && messages.length < count) toEnd();
  }, [live, messages.length, toEnd]);

  // The list follows a growing answer after the browser's layout. Reading the height earlier would force a second layout.
  useEffect(() => {
    const content = root.current?.querySelector(".thread-list > *");
    if (!content) return undefined;
    const observer = new ResizeObserver(follow);
    observer.observe(content);
    // The composer and the notices below the list grow and shrink too.
    if (root.current) observer.observe(root.current);
    return () => observer.disconnect();
  }, [follow]);

  const onScroll = useCallback(
    (offset: number) => {
      scrolled(offset);
      if (offset < NEAR_BEGINNING_PX && thread.older) void threads.loadOlder(thread.id);
    },
    [threads, scrolled, thread.older, thread.id],
  );
  // If there are too few rows to scroll, earlier messages are loaded without scrolling.
  useEffect(() => {
    const handle = list.current;
    if (thread.older && handle && handle.viewportSize > 0 && handle.scrollSize < handle.viewportSize + NEAR_BEGINNING_PX) void threads.loadOlder(thread.id);
  }, [rows, thread.older, thread.id, threads]);

  return (
    <div ref={root} className="thread" role="log" aria-label={words.thread.label} aria-live="off">
      <OpenedProvider value={opened}>
        <VList ref={list} data={rows} className="thread-list" shift={isShifted} onScroll={onScroll} tabIndex={0} bufferSize={600} keepMounted={mounted}>
          {(row: MessageRow, at: number) => (
            <div key={row.key} data-row={row.key} className={at === rows.length - 1 ? "row is-last" : "row"}>
              <ThreadRow row={row} threadId={thread.id} isBusy={busy} />
            </div>
          )}
        </VList>
        <PrintedRows rows={rows} threadId={thread.id} />
      </OpenedProvider>
      {isFinding && (
        <Suspense fallback={<FirstWords onType={(text) => (begun.current = text)} />}>
          <FindBar thread={thread} rows={rows} root={root} list={list} begun={begun} onShown={stay} onClose={onFound} />
        </Suspense>
      )}
      {search && (
        <p className="thread-note" role="status">
          {search === "running" ? words.source.lookingForMessage : passage?.found ? words.source.hitGone : words.source.messageGone}
        </p>
      )}
      {!isAtEnd && (
        <button type="button" className="to-end" onClick={toEnd} aria-label={words.thread.toEnd} title={words.thread.toEnd}>
          <Icon name="arrowDown" />
        </button>
      )}
      <Announcer thread={thread} />
    </div>
  );
});

/** The field of the bar that finds words, until its code has arrived: words that are typed meanwhile belong to it. */
function FirstWords({ onType }: { onType: (text: string) => void }) {
  return (
    <div className="find">
      <input type="search" autoFocus dir="auto" aria-label={words.find.label} onChange={(event) => onType(event.target.value)} />
    </div>
  );
}

/** Whether the last change added rows at the beginning. The list then keeps its distance from the end. */
function useIsShifted(firstKey: string | undefined, count: number): boolean {
  const before = useRef({ firstKey, count, isShifted: false });
  if (before.current.firstKey !== firstKey || before.current.count !== count) {
    const isShifted = before.current.firstKey !== undefined && before.current.firstKey !== firstKey && count > before.current.count;
    before.current = { firstKey, count, isShifted };
  }
  return before.current.isShifted;
}

/** Tells a screen reader when an answer begins and how it ended. The text itself is in the log. */
function Announcer({ thread }: { thread: Thread }) {
  const [text, setText] = useState("");
  const liveId = thread.live?.id ?? null;
  const waiting = thread.live?.wait ? waitingFor(thread.live) : null;
  const before = useRef<string | null>(null);
  const last = thread.messages.at(-1);
  useEffect(() => {
    if (waiting !== null) setText(waiting === "approval" ? words.wait.needed : words.wait.waits);
    else if (liveId !== null) setText(words.thread.answerBegan);
    else if (before.current !== null) {
      const status = last?.status;
      setText(status === "cancelled" ? words.thread.answerStopped : status === "failed" ? words.thread.answerFailed : words.thread.answerDone);
    }
    before.current = liveId;
  }, [liveId, waiting, last?.status]);
  return (
    <div className="visually-hidden" role="status">
      {text}
    </div>
  );
}
