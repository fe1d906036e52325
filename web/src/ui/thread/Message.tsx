/** Rows of the thread: a settled message, the answer that is being written, and what waits to be sent. */
import { memo, useState } from "react";

import { wordsOf } from "../../state/content";
import type { Row } from "../../state/select";
import type { Outgoing } from "../../state/thread";
import type { Message } from "../../wire/types";
import { words } from "../../words";
import { CopyButton } from "../CopyButton";
import { useServices, useSelect } from "../context";
import { Icon } from "../Icon";
import { Answer, Branches, Ending } from "./Answer";
import { Editor } from "./Editor";
import { FileList } from "./Files";

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
      return <Answer threadId={threadId} isBusy={isBusy} told={row} />;
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
      if (row.message.role === "assistant") return <Answer threadId={threadId} isBusy={isBusy} told={row} />;
      return <Asked message={row.message} threadId={threadId} isBusy={isBusy} />;
    default:
      return row satisfies never;
  }
});

function Asked({ message, threadId, isBusy }: { message: Message; threadId: string; isBusy: boolean }) {
  const { branches } = useServices();
  const editing = useSelect((state) => state.threads[threadId]?.edits[message.turn_id]);
  const [isBegunHere, setIsBegunHere] = useState(false);
  const text = wordsOf(message.content);
  if (message.role === "system")
    return (
      <article className="message is-system" aria-label={words.thread.system}>
        <div className="bubble">{text}</div>
      </article>
    );
  const edit = () => {
    setIsBegunHere(true);
    branches.openEdit(threadId, message);
  };
  return (
    <article className="message is-user" aria-label={words.thread.you} data-turn={message.turn_id}>
      {editing ? (
        <Editor threadId={threadId} turnId={message.turn_id} editing={editing} isBusy={isBusy} isNew={isBegunHere} />
      ) : (
        <>
          <FileList files={message.attachments} label={words.thread.attachments} />
          <div className="asked">
            {text && <div className="bubble">{text}</div>}
            <div className="actions">
              <CopyButton text={text} label={words.thread.copyMessage} />
              <button type="button" className="tool" data-opens="editor" onClick={edit} aria-label={words.thread.edit} title={words.thread.edit}>
                <Icon name="pencil" />
              </button>
            </div>
          </div>
        </>
      )}
    </article>
  );
}

function Waiting({ threadId, outgoing }: { threadId: string; outgoing: Outgoing }) {
  const { outbox } = useServices();
  const { turn_id: turnId } = outgoing;
  return (
    <article className="message is-user is-waiting" aria-label={words.thread.you}>
      <FileList files={outgoing.attachments} label={words.thread.attachments} />
      {outgoing.text && <div className="bubble">{outgoing.text}</div>}
      <div className="outgoing-foot">
        {outgoing.status === "sending" && <span>{words.thread.sending}</span>}
        {outgoing.status === "queued" && <span>{outgoing.beside ? words.thread.queuedBeside[outgoing.beside] : words.thread.queued}</span>}
        {outgoing.status === "refused" && (
          <span className="is-failure" role="alert">
            {words.thread.refused} {outgoing.error?.message}
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
            <button type="button" className="link" onClick={() => outbox.remove(threadId, outgoing.key)}>
              {words.remove}
            </button>
          </>
        )}
        {outgoing.status === "sending" && (
          <button type="button" className="link" onClick={() => outbox.remove(threadId, outgoing.key)}>
            {words.cancel}
          </button>
        )}
      </div>
    </article>
  );
}
