/** The rows of a conversation: questions, answers, the answer that is being written, and messages on their way. */
import { type FilePart, type MessageRow, messageText, openCalls, type OutgoingMessage, type Part, shownParts, type SteeredWords, type ThreadMessage, type Turnkeep, type TurnDisplay } from "@turnkeep/client";
import { Fragment, memo, type ReactNode, type RefObject, useEffect, useLayoutEffect, useRef, useState } from "react";

import type { Chat, ChatState, Draft } from "./chat.js";
import { Editor } from "./forms.js";
import type { Renderers } from "./renderers.js";
import type { Words } from "./words.js";

export interface Shown {
  client: Turnkeep;
  chat: Chat;
  words: Words;
  renderers: Renderers;
  /** Where a keyboard is, and where it goes when its row goes away. */
  focus: Focus;
  /** Takes the text and the files of a message that is not sent. */
  onDraft(draft: Draft): void;
}

export interface Focus {
  composer: RefObject<HTMLTextAreaElement | null>;
  /** The button of a version that is being loaded. */
  version: RefObject<{ turnId: string; isNext: boolean } | null>;
}

interface RowProps extends Shown {
  row: MessageRow;
  /** Whether an answer is being written. */
  isBusy: boolean;
  /** For the row of that answer alone, so that it redraws no other row. */
  state: ChatState | null;
}

export const Row = memo(function Row({ row, state, isBusy, ...shown }: RowProps): ReactNode {
  const { chat, words, focus } = shown;
  switch (row.kind) {
    case "older":
      return (
        <button type="button" className="tk-older" onClick={() => void chat.loadOlder()}>
          {words.older}
        </button>
      );
    case "message":
      return row.message.role === "assistant" ? (
        <Answer message={row.message} steered={row.steered} isBusy={isBusy} {...shown} />
      ) : (
        <Question message={row.message} isBusy={isBusy} {...shown} />
      );
    case "live":
      return state && <Live turn={row.turn} state={state} {...shown} />;
    case "ending":
      return (
        <Article role="assistant" words={words} focus={focus}>
          <Ending status={row.status} error={row.failure} words={words} />
          <Actions turnId={row.turnId} siblings={row.versions.flat()} isBusy={isBusy} {...shown} />
        </Article>
      );
    case "outgoing":
      return <Outgoing outgoing={row.outgoing} {...shown} />;
    default:
      return row satisfies never;
  }
});

function Question({ message, isBusy, ...shown }: Shown & { message: ThreadMessage; isBusy: boolean }): ReactNode {
  const { chat, words, focus } = shown;
  const [isEdited, setIsEdited] = useState(false);
  const opener = useRef<HTMLButtonElement>(null);
  const wasEdited = useRef(false);
  useEffect(() => {
    if (wasEdited.current && !isEdited) opener.current?.focus();
    wasEdited.current = isEdited;
  }, [isEdited]);
  if (isEdited) {
    const draft = { text: messageText(message.content), files: message.attachments };
    return (
      <Article role="user" words={words} focus={focus}>
        <Editor chat={chat} turnId={message.turn_id} message={draft} isBusy={isBusy} onClose={() => setIsEdited(false)} words={words} />
      </Article>
    );
  }
  return (
    <Article role={message.role} words={words} focus={focus}>
      <div className="tk-bubble">
        <Parts parts={message.content} {...shown} />
        <Files files={message.attachments} {...shown} />
      </div>
      {/* Words that steered an answer are part of it. */}
      {message.role === "user" && !message.isSteer && (
        <div className="tk-actions">
          <button ref={opener} type="button" className="tk-tool" data-opens="editor" aria-label={words.edit} title={words.edit} onClick={() => setIsEdited(true)}>
            <Icon path="M4 20h4L19 9l-4-4L4 16z" />
          </button>
        </div>
      )}
    </Article>
  );
}

function Answer({ message, steered, isBusy, ...shown }: Shown & { message: ThreadMessage; steered: readonly SteeredWords[]; isBusy: boolean }): ReactNode {
  const { words, focus } = shown;
  const note = message.finish && words.finish[message.finish];
  return (
    <Article role="assistant" words={words} focus={focus}>
      <Parts parts={message.content} steered={steered} {...shown} />
      <Files files={message.attachments} {...shown} />
      <Ending status={message.status} error={message.error} words={words} />
      {note && <p className="tk-notice">{note}</p>}
      {message.sources.length > 0 && <shown.renderers.sources sources={message.sources} words={words} />}
      <Actions turnId={message.turn_id} siblings={message.siblings ?? []} isBusy={isBusy} {...shown} />
    </Article>
  );
}

function Live({ turn, state, ...shown }: Shown & { turn: TurnDisplay; state: ChatState }): ReactNode {
  const { chat, words, renderers, focus } = shown;
  const calls = turn.wait ? openCalls(state.thread, turn.wait) : [];
  const parts = shownParts(turn);
  return (
    <Article role="assistant" words={words} focus={focus} isBusy>
      <Parts parts={parts} steered={turn.steered} isGrowing {...shown} />
      {parts.length === 0 && !turn.wait && <p className="tk-waiting">{words.waiting}</p>}
      {calls.length > 0 && <renderers.approval calls={calls} words={words} decide={(decision, id) => void chat.decide(decision, id)} />}
      {turn.wait && turn.wait.clientCalls.length > 0 && calls.length === 0 && <p className="tk-notice">{words.clientTools}</p>}
      {turn.sources.length > 0 && <renderers.sources sources={turn.sources} words={words} />}
    </Article>
  );
}

function Outgoing({ outgoing, ...shown }: Shown & { outgoing: OutgoingMessage }): ReactNode {
  const { chat, words, focus, onDraft } = shown;
  const { key, status, branch, steers } = outgoing;
  const note = branch ? words.queuedBranch[branch] : steers ? words.steering : words.queued;
  const remove = async () => {
    const draft = await chat.remove(key);
    if (draft) onDraft(draft);
  };
  return (
    <Article role="user" words={words} focus={focus}>
      <div className="tk-bubble">
        {outgoing.text && <p>{outgoing.text}</p>}
        <Files files={outgoing.attachments} {...shown} />
      </div>
      <p className={status === "refused" ? "tk-notice is-error" : "tk-notice"} role={status === "refused" ? "alert" : undefined}>
        {status === "refused" ? outgoing.error?.message : status === "queued" ? note : words.sending}{" "}
        {status === "refused" && (
          <button type="button" onClick={() => void chat.sendAgain(key)}>
            {words.again}
          </button>
        )}
        {status !== "sending" && (
          <button type="button" onClick={() => void remove()}>
            {words.unsend}
          </button>
        )}
      </p>
    </Article>
  );
}

/** What can be done with an answer: have another one, and look at the others. */
function Actions({ turnId, siblings, isBusy, chat, words, focus }: Shown & { turnId: string; siblings: readonly string[]; isBusy: boolean }): ReactNode {
  const isAsking = useRef(false);
  const again = async () => {
    // A second click must not ask twice.
    if (isAsking.current) return;
    isAsking.current = true;
    await chat.regenerate(turnId);
    isAsking.current = false;
  };
  return (
    <div className="tk-actions">
      <button type="button" className="tk-tool" aria-label={words.regenerate} title={words.regenerate} onClick={() => void again()}>
        <Icon path="M19 5v5h-5M19 10a7 7 0 1 0 0 6" />
      </button>
      <Versions turnId={turnId} siblings={siblings} isBusy={isBusy} chat={chat} words={words} focus={focus} />
    </div>
  );
}

function Versions({ turnId, siblings, isBusy, chat, words, focus }: Pick<Shown, "chat" | "words" | "focus"> & { turnId: string; siblings: readonly string[]; isBusy: boolean }): ReactNode {
  const group = useRef<HTMLSpanElement>(null);
  const at = siblings.indexOf(turnId);
  // Another version is another row. Its button takes the focus from that of the version before.
  useLayoutEffect(() => {
    const wanted = focus.version.current;
    if (wanted?.turnId !== turnId) return;
    focus.version.current = null;
    const [previous, next] = group.current?.querySelectorAll("button") ?? [];
    const [first, second] = wanted.isNext ? [next, previous] : [previous, next];
    (first?.disabled ? second : first)?.focus();
  }, [turnId, focus]);
  if (siblings.length < 2 || at < 0) return null;
  const button = (target: string | undefined, isNext: boolean, label: string) => {
    const show = async () => {
      if (isBusy || target === undefined) return;
      focus.version.current = { turnId: target, isNext };
      if (!(await chat.showVersion(turnId, target))) focus.version.current = null;
    };
    return (
      <button type="button" className="tk-tool" disabled={target === undefined} aria-disabled={isBusy || undefined} aria-label={label} title={isBusy && target ? words.versionsBusy : label} onClick={() => void show()}>
        <Icon path={isNext ? "M9 5l7 7-7 7" : "M15 5l-7 7 7 7"} />
      </button>
    );
  };
  return (
    <span ref={group} className="tk-versions">
      {button(siblings[at - 1], false, words.previousVersion)}
      <span role="img" aria-label={words.version(at + 1, siblings.length)}>
        {at + 1}/{siblings.length}
      </span>
      {button(siblings[at + 1], true, words.nextVersion)}
    </span>
  );
}

const Icon = ({ path }: { path: string }): ReactNode => (
  <svg viewBox="0 0 24 24" width="16" height="16" fill="none" stroke="currentColor" strokeWidth="2" strokeLinecap="round" strokeLinejoin="round" aria-hidden="true">
    <path d={path} />
  </svg>
);

function Article({ role, words, focus, isBusy = false, children }: { role: string; words: Words; focus: Focus; isBusy?: boolean; children: ReactNode }): ReactNode {
  const article = useRef<HTMLElement>(null);
  useLayoutEffect(() => {
    const element = article.current;
    return () => {
      const root = element?.getRootNode() as Document | ShadowRoot | undefined;
      if (!element?.contains(root?.activeElement ?? null) || focus.version.current) return;
      // The row goes away, and the focus was in it. On a phone this would open the keyboard over the answer.
      queueMicrotask(() => matchMedia("(pointer: fine)").matches && focus.composer.current?.focus());
    };
  }, [focus]);
  return (
    <article ref={article} className={`tk-message is-${role}`} aria-label={role === "user" ? words.you : words.assistant} aria-busy={isBusy}>
      {children}
    </article>
  );
}

interface PartsProps extends Shown {
  parts: readonly Part[];
  /** Words of the user that were added while the answer was written. */
  steered?: readonly SteeredWords[];
  isGrowing?: boolean;
}

function Parts({ parts, steered = [], isGrowing = false, ...shown }: PartsProps): ReactNode {
  const added = (words: readonly SteeredWords[]) =>
    words.map((one) => (
      <div key={one.message_id} className="tk-steered" role="group" aria-label={shown.words.steered}>
        {one.text}
      </div>
    ));
  return (
    <>
      {parts.map((part, at) => (
        <Fragment key={at}>
          {added(steered.filter((one) => one.at === at))}
          <OnePart part={part} isGrowing={isGrowing && at === parts.length - 1} {...shown} />
        </Fragment>
      ))}
      {added(steered.filter((one) => one.at >= parts.length))}
    </>
  );
}

function OnePart({ part, isGrowing, ...shown }: Shown & { part: Part; isGrowing: boolean }): ReactNode {
  const { renderers, words } = shown;
  switch (part.type) {
    case "text":
      return <renderers.text text={part.text} isGrowing={isGrowing} words={words} />;
    case "reasoning":
      return <renderers.reasoning text={part.text} isGrowing={isGrowing} words={words} />;
    case "step":
      return <renderers.step step={part} words={words} />;
    case "file":
      return <Files files={[part]} {...shown} />;
    default:
      return part satisfies never;
  }
}

function Files({ files, client, renderers, words }: Shown & { files: readonly Omit<FilePart, "type">[] }): ReactNode {
  return files.map((file) => {
    const download = () => void save(client, file.file_id, file.name);
    return <renderers.file key={file.file_id} file={{ ...file, type: "file" }} words={words} download={download} />;
  });
}

/** Bytes need the token, so a plain link does not lead to them. */
async function save(client: Turnkeep, id: string, name: string): Promise<void> {
  const url = URL.createObjectURL(await client.files.read(id));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function Ending({ status, error, words }: { status: string; error: { message: string } | null; words: Words }): ReactNode {
  if (status === "cancelled") return <p className="tk-notice">{words.stopped}</p>;
  return status === "failed" && error ? <p className="tk-notice is-error">{error.message}</p> : null;
}
