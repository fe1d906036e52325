/** What a share link shows: the messages of one branch, which can be read and printed. Nobody has to be signed in. */
import { useEffect, useState } from "react";

import type { SharedConversation, SharedMessage } from "@turnkeep/client";
import { errorText, isNotFound } from "../../effects/notices";
import { shared } from "../../effects/requests";
import { dateInWords, words } from "../../words";
import { NoticeList } from "../App";
import { brandName, Mark } from "../Brand";
import { Icon } from "../Icon";
import { FileList } from "../thread/Files";
import { Parts } from "../thread/Parts";

interface Shown {
  readonly first: SharedConversation;
  readonly messages: readonly SharedMessage[];
  readonly next: string | null;
}

export default function ShareView({ token }: { token: string }) {
  const [shown, setShown] = useState<Shown | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const load = async (cursor: string | null) => {
    setFailure(null);
    try {
      const page = await shared(cursor);
      setShown((before) => ({ first: before?.first ?? page, messages: [...(cursor === null ? [] : (before?.messages ?? [])), ...page.data], next: page.next_cursor }));
    } catch (error) {
      setFailure(error);
    }
  };
  useEffect(() => {
    if (token) void load(null);
  }, [token]);
  const title = shown?.first.title ?? words.shared.untitled;
  const isGone = !token || isNotFound(failure);
  useEffect(() => {
    document.title = `${isGone ? words.shared.gone : title} · ${brandName()}`;
  }, [title, isGone]);
  return (
    <div className="shared-page">
      <header className="shared-brand">
        <Mark />
        <span className="brand-name">{brandName()}</span>
        <a className="button" href="/" rel="noopener">
          {words.shared.home(brandName())}
        </a>
      </header>
      <main className="shared">
        {isGone ? (
          <div className="shared-gone">
            <h1>{words.shared.gone}</h1>
            <p>{words.shared.goneHint}</p>
          </div>
        ) : (
          <>
            {shown && <Messages shown={shown} title={title} />}
            {failure !== null && (
              <p role="alert" className="is-failure">
                {errorText(failure)}{" "}
                <button type="button" className="link" onClick={() => void load(shown?.next ?? null)}>
                  {words.retry}
                </button>
              </p>
            )}
            {shown === null && failure === null && <p className="centered">{words.session.starting}</p>}
            {shown !== null && shown.next !== null && failure === null && (
              <button type="button" className="button is-more" onClick={() => void load(shown.next)}>
                {words.shared.more}
              </button>
            )}
          </>
        )}
      </main>
      <NoticeList />
    </div>
  );
}

function Messages({ shown: { first, messages }, title }: { shown: Shown; title: string }) {
  return (
    <>
      <header className="shared-head">
        <h1 dir="auto">{title}</h1>
        <p className="faint">{words.shared.note(dateInWords(first.created_at))}</p>
      </header>
      <div aria-label={words.shared.label} role="group">
        {messages.map((message, at) => (
          <SharedRow key={at} message={message} at={at} />
        ))}
      </div>
    </>
  );
}

function SharedRow({ message, at }: { message: SharedMessage; at: number }) {
  const isQuestion = message.role === "user";
  const text = message.content.flatMap((part) => (part.type === "text" ? [part.text] : [])).join("\n\n");
  return (
    <article className={isQuestion ? "message is-user" : "message is-assistant"} aria-label={isQuestion ? words.shared.question : words.thread.assistant}>
      {isQuestion ? (
        <>
          <FileList files={message.attachments} label={words.thread.attachments} threadId="" />
          {text && (
            <div className="bubble" dir="auto">
              {text}
            </div>
          )}
        </>
      ) : (
        <Parts turnId={String(at)} threadId="" parts={message.content} sources={message.sources} steered={[]} isGrowing={false} />
      )}
      {message.hidden_files > 0 && (
        <p className="hidden-files faint">
          <Icon name="file" />
          {words.shared.hiddenFiles(message.hidden_files)}
        </p>
      )}
      {!isQuestion && <Ending message={message} />}
    </article>
  );
}

/** How an answer ended that is not complete. Why it failed is not for readers of a link. */
function Ending({ message: { status, finish } }: { message: SharedMessage }) {
  const text = status === "cancelled" ? words.shared.stopped : status === "failed" ? words.thread.failed : finish && finish !== "complete" ? words.thread.finish[finish] : null;
  return text === null ? null : (
    <div className="ending" role="note">
      <Icon name={status === "cancelled" ? "stop" : "warn"} />
      <span className="ending-text">{text}</span>
    </div>
  );
}
