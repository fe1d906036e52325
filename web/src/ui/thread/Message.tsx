/** Rows of the thread: a settled message, the answer that is being written, and what waits to be sent. */
import { memo, useEffect, useRef, useState } from "react";

import { wordsOf } from "../../effects/exporting";
import type { Row } from "../../state/select";
import type { Failure, Outgoing } from "../../state/thread";
import { shownParts, type TurnView, waitingFor } from "../../state/turn";
import type { Message } from "../../wire/types";
import { timeInWords, words } from "../../words";
import { CopyButton } from "../CopyButton";
import { useDesk } from "../context";
import { Icon } from "../Icon";
import { FileList } from "./Files";
import { Parts } from "./Parts";

interface Props {
  row: Row;
  threadId: string;
  isBusy: boolean;
}

export const ThreadRow = memo(function ThreadRow({ row, threadId, isBusy }: Props) {
  switch (row.kind) {
    case "older":
      return <div className="older">{words.thread.older}</div>;
    case "live":
      return <Live turn={row.turn} threadId={threadId} />;
    case "outgoing":
      return <Waiting threadId={threadId} outgoing={row.outgoing} />;
    case "ending":
      return (
        <article className="message is-assistant" aria-label={words.thread.assistant}>
          <Ending threadId={threadId} turnId={row.turnId} status={row.status} failure={row.failure} isBusy={isBusy} />
          <div className="actions">
            <Branches threadId={threadId} turnId={row.turnId} siblings={row.siblings} isBusy={isBusy} />
          </div>
        </article>
      );
    case "message":
      if (row.message.role === "assistant")
        return <Answer message={row.message} failure={row.failure} threadId={threadId} isBusy={isBusy} />;
      return <Asked message={row.message} threadId={threadId} isBusy={isBusy} />;
    default:
      return row satisfies never;
  }
});

function Asked({ message, threadId, isBusy }: { message: Message; threadId: string; isBusy: boolean }) {
  const [isEditing, setIsEditing] = useState(false);
  const text = wordsOf(message.content);
  if (message.role === "system")
    return (
      <article className="message is-system" aria-label={words.thread.system}>
        <div className="bubble">{text}</div>
      </article>
    );
  return (
    <article className="message is-user" aria-label={words.thread.you} data-turn={message.turn_id}>
      <FileList files={message.attachments} label={words.thread.attachments} />
      {isEditing ? (
        <Editor threadId={threadId} turnId={message.turn_id} text={text} onDone={() => setIsEditing(false)} />
      ) : (
        <div className="asked">
          {text && <div className="bubble">{text}</div>}
          <div className="actions">
            <CopyButton text={text} label={words.thread.copyMessage} />
            <button type="button" className="tool" onClick={() => setIsEditing(true)} disabled={isBusy} aria-label={words.thread.edit} title={words.thread.edit}>
              <Icon name="pencil" />
            </button>
          </div>
        </div>
      )}
    </article>
  );
}

function Editor({ threadId, turnId, text, onDone }: { threadId: string; turnId: string; text: string; onDone: () => void }) {
  const desk = useDesk();
  const [value, setValue] = useState(text);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    area.current?.focus();
    area.current?.setSelectionRange(text.length, text.length);
  }, [text]);
  const submit = () => {
    if (!value.trim()) return;
    onDone();
    void desk.edit(threadId, turnId, value.trim());
  };
  return (
    <form
      className="editor"
      onSubmit={(event) => {
        event.preventDefault();
        submit();
      }}
    >
      <textarea
        ref={area}
        value={value}
        rows={Math.min(12, value.split("\n").length + 1)}
        aria-label={words.thread.editLabel}
        onChange={(event) => setValue(event.target.value)}
        onKeyDown={(event) => {
          if (event.key === "Escape") onDone();
          if (event.key === "Enter" && !event.shiftKey && !event.nativeEvent.isComposing) {
            event.preventDefault();
            submit();
          }
        }}
      />
      <div className="editor-foot">
        <button type="button" className="button" onClick={onDone}>
          {words.cancel}
        </button>
        <button type="submit" className="button is-main" disabled={!value.trim()}>
          {words.thread.editSend}
        </button>
      </div>
    </form>
  );
}

interface AnswerProps {
  message: Message;
  failure: Failure | null;
  threadId: string;
  isBusy: boolean;
}

function Answer({ message, failure, threadId, isBusy }: AnswerProps) {
  const desk = useDesk();
  const title = [timeInWords(message.created_at), message.usage ? words.thread.tokens(message.usage.input_tokens, message.usage.output_tokens) : ""].filter(Boolean).join(" · ");
  return (
    <article className="message is-assistant" aria-label={words.thread.assistant} data-turn={message.turn_id}>
      <Parts turnId={message.turn_id} threadId={threadId} parts={message.content} sources={message.sources} isGrowing={false} />
      {message.status !== "succeeded" && (
        <Ending threadId={threadId} turnId={message.turn_id} status={message.status} failure={failure} isBusy={isBusy} />
      )}
      <div className="actions">
        <CopyButton text={() => wordsOf(message.content)} label={words.thread.copyAnswer} />
        <button
          type="button"
          className="tool"
          onClick={() => void desk.regenerate(threadId, message.turn_id)}
          disabled={isBusy}
          aria-label={words.thread.regenerate}
          title={words.thread.regenerate}
        >
          <Icon name="again" />
        </button>
        <Branches threadId={threadId} turnId={message.turn_id} siblings={message.siblings ?? []} isBusy={isBusy} />
        <span className="when" title={title}>
          {timeInWords(message.created_at)}
        </span>
      </div>
    </article>
  );
}

/** An answer that did not come to its end: what happened, and a way on. */
function Ending({ threadId, turnId, status, failure, isBusy }: { threadId: string; turnId: string; status: Message["status"]; failure: Failure | null; isBusy: boolean }) {
  const desk = useDesk();
  const isStopped = status === "cancelled";
  if (!isStopped && status !== "failed") return null;
  return (
    <div className={isStopped ? "ending" : "ending is-failure"} role="note">
      <Icon name={isStopped ? "stop" : "warn"} />
      <span className="ending-text">
        {isStopped ? words.thread.stopped : words.thread.failed} {!isStopped && failure && <span className="ending-why">{failure.message}</span>}
      </span>
      <button type="button" className="button" disabled={isBusy} onClick={() => void desk.regenerate(threadId, turnId)}>
        {words.thread.retry}
      </button>
    </div>
  );
}

function Branches({ threadId, turnId, siblings, isBusy }: { threadId: string; turnId: string; siblings: readonly string[]; isBusy: boolean }) {
  const desk = useDesk();
  const at = siblings.indexOf(turnId);
  if (siblings.length < 2 || at < 0) return null;
  const step = (by: number, label: string, icon: "left" | "right") => {
    const target = siblings[at + by];
    return (
      <button
        type="button"
        className="tool"
        disabled={!target || isBusy}
        onClick={() => target && void desk.showBranch(threadId, turnId, target)}
        aria-label={label}
        title={label}
      >
        <Icon name={icon} />
      </button>
    );
  };
  return (
    <span className="branches">
      {step(-1, words.thread.previousBranch, "left")}
      <span className="branch-count" aria-label={words.thread.branch(at + 1, siblings.length)} role="img">
        {at + 1}/{siblings.length}
      </span>
      {step(1, words.thread.nextBranch, "right")}
    </span>
  );
}

function Live({ turn, threadId }: { turn: TurnView; threadId: string }) {
  const waiting = waitingFor(turn);
  return (
    <article className="message is-assistant is-live" aria-label={words.thread.assistant} aria-busy="true" data-turn={turn.id}>
      <Parts turnId={turn.id} threadId={threadId} parts={shownParts(turn)} sources={turn.sources} isGrowing={turn.text !== "" || turn.reasoning !== ""} />
      {waiting !== "words" && !(waiting === "first_word" && turn.reasoning) && (
        <div className="waiting">
          <span className="dots" aria-hidden="true">
            <i />
            <i />
            <i />
          </span>
          {waiting === "queue" ? words.thread.waiting : words.thread.thinking}
        </div>
      )}
    </article>
  );
}

function Waiting({ threadId, outgoing }: { threadId: string; outgoing: Outgoing }) {
  const desk = useDesk();
  const { turn_id: turnId } = outgoing;
  return (
    <article className="message is-user is-waiting" aria-label={words.thread.you}>
      <FileList files={outgoing.attachments} label={words.thread.attachments} />
      {outgoing.text && <div className="bubble">{outgoing.text}</div>}
      <div className="outgoing-foot">
        {outgoing.status === "sending" && <span>{words.thread.sending}</span>}
        {outgoing.status === "queued" && <span>{words.thread.queued}</span>}
        {outgoing.status === "refused" && (
          <span className="is-failure" role="alert">
            {words.thread.refused} {outgoing.error?.message}
          </span>
        )}
        {outgoing.status === "queued" && turnId && (
          <button type="button" className="link" onClick={() => void desk.cancelQueued(threadId, turnId, outgoing.key)}>
            {words.thread.unqueue}
          </button>
        )}
        {outgoing.status === "refused" && (
          <>
            <button type="button" className="link" onClick={() => void desk.askAgain(threadId, outgoing.key)}>
              {words.retry}
            </button>
            <button type="button" className="link" onClick={() => desk.withdraw(threadId, outgoing.key)}>
              {words.remove}
            </button>
          </>
        )}
        {outgoing.status === "sending" && (
          <button type="button" className="link" onClick={() => desk.withdraw(threadId, outgoing.key)}>
            {words.cancel}
          </button>
        )}
      </div>
    </article>
  );
}
