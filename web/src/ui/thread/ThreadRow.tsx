/** One row of a thread: a message, the answer that is being written, or an outgoing message. */
import { memo, useState } from "react";

import { type MessageRow, messageText, type OutgoingMessage, type ThreadMessage, versionsOf } from "@turnkeep/client";
import { words } from "../../words";
import { useSelect, useServices } from "../context";
import { CopyButton } from "../CopyButton";
import { Icon } from "../Icon";
import { AnswerVersions, AssistantMessage, FailureText, QuestionVersions, TurnEnding } from "./AssistantMessage";
import { FileList } from "./Files";
import { MessageEditor } from "./MessageEditor";

interface Props {
  row: MessageRow;
  threadId: string;
  isBusy: boolean;
}

export const ThreadRow = memo(function ThreadRow({ row, threadId, isBusy }: Props) {
  switch (row.kind) {
    case "older":
      return <div className="older">{words.thread.older}</div>;
    case "live":
      return <AssistantMessage threadId={threadId} isBusy={isBusy} row={row} />;
    case "outgoing":
      return <OutgoingRow threadId={threadId} outgoing={row.outgoing} />;
    case "ending":
      return (
        <article className="message is-assistant" aria-label={words.thread.assistant}>
          <TurnEnding threadId={threadId} turnId={row.turnId} status={row.status} failure={row.failure} isBusy={isBusy} />
          <div className="actions">
            <AnswerVersions threadId={threadId} turnId={row.turnId} versions={row.versions} isBusy={isBusy} />
          </div>
        </article>
      );
    case "message":
      if (row.message.role === "assistant") return <AssistantMessage threadId={threadId} isBusy={isBusy} row={row} />;
      return <UserMessage message={row.message} threadId={threadId} isBusy={isBusy} />;
    default:
      return row satisfies never;
  }
});

function UserMessage({ message, threadId, isBusy }: { message: ThreadMessage; threadId: string; isBusy: boolean }) {
  const { branches } = useServices();
  const edit = useSelect((state) => state.threads[threadId]?.edits[message.turn_id]);
  const [isOpenedHere, setIsOpenedHere] = useState(false);
  const text = messageText(message.content);
  if (message.role === "system")
    return (
      <article className="message is-system" aria-label={words.thread.system}>
        <div className="bubble" dir="auto">
          {text}
        </div>
      </article>
    );
  const openEditor = () => {
    setIsOpenedHere(true);
    branches.openEdit(threadId, message);
  };
  return (
    <article className="message is-user" aria-label={words.thread.you} data-turn={message.turn_id}>
      {edit && !message.isSteer ? (
        <MessageEditor threadId={threadId} turnId={message.turn_id} edit={edit} isBusy={isBusy} isNew={isOpenedHere} />
      ) : (
        <>
          <FileList files={message.attachments} label={words.thread.attachments} threadId={threadId} />
          <div className="question">
            {text && (
              <div className="bubble" dir="auto">
                {text}
              </div>
            )}
            <div className="actions">
              <CopyButton text={text} label={words.thread.copyMessage} />
              {/* An edit replaces the question of a turn. Words that steered it are part of its answer. */}
              {!message.isSteer && (
                <button type="button" className="tool" data-opens="editor" onClick={openEditor} aria-label={words.thread.edit} title={words.thread.edit}>
                  <Icon name="pencil" />
                </button>
              )}
              {!message.isSteer && <QuestionVersions threadId={threadId} turnId={message.turn_id} versions={versionsOf(message)} isBusy={isBusy} />}
            </div>
          </div>
        </>
      )}
    </article>
  );
}

function OutgoingRow({ threadId, outgoing }: { threadId: string; outgoing: OutgoingMessage }) {
  const { outbox } = useServices();
  const { turn_id: turnId, steers } = outgoing;
  const isSteering = useSelect((state) => steers !== undefined && state.threads[threadId]?.live?.id === steers);
  return (
    <article className="message is-user is-waiting" aria-label={words.thread.you}>
      <FileList files={outgoing.attachments} label={words.thread.attachments} threadId={threadId} />
      {outgoing.text && (
        <div className="bubble" dir="auto">
          {outgoing.text}
        </div>
      )}
      <div className="outgoing-foot">
        {outgoing.status === "sending" && <span>{words.thread.sending}</span>}
        {outgoing.status === "queued" && <span>{outgoing.branch ? words.thread.queuedBranch[outgoing.branch] : isSteering ? words.thread.steering : words.thread.queued}</span>}
        {outgoing.status === "refused" && (
          <span className="is-failure" role="alert">
            {words.thread.refused} {outgoing.error && <FailureText failure={outgoing.error} />}
          </span>
        )}
        {outgoing.status === "queued" && turnId && (
          <button type="button" className="link" onClick={() => void outbox.cancelQueued(threadId, turnId, outgoing.key)}>
            {words.thread.unqueue}
          </button>
        )}
        {outgoing.status === "refused" && (
          <>
            <button type="button" className="link" onClick={() => void outbox.sendAgain(threadId, outgoing.key)}>
              {words.retry}
            </button>
            <button type="button" className="link" onClick={() => outbox.takeBack(threadId, outgoing.key)}>
              {words.thread.unqueue}
            </button>
          </>
        )}
        {outgoing.status === "sending" && (
          <button type="button" className="link" onClick={() => outbox.takeBack(threadId, outgoing.key)}>
            {words.thread.unqueue}
          </button>
        )}
      </div>
    </article>
  );
}
