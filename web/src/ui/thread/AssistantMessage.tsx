/** An answer. One component draws it while it is written and afterwards, so that open steps, selection and focus stay. */
import { useRef, useState } from "react";
import { flushSync } from "react-dom";

import { type Failure, type IfBusy, isRunning, type Message, messageText, type Part, shownParts, type SteeredWords, type TurnDisplay, waitingFor } from "@turnkeep/client";
import { timeInWords, words } from "../../words";
import { useServices } from "../context";
import { CopyButton } from "../CopyButton";
import { Icon } from "../Icon";
import { Parts } from "./Parts";
import { WaitView } from "./WaitView";

interface Props {
  threadId: string;
  isBusy: boolean;
  /** The turn while it runs, the message when it has ended. */
  row: { turn: TurnDisplay } | { message: Message; steered: readonly SteeredWords[] };
}

export function AssistantMessage({ threadId, isBusy, row }: Props) {
  const live = "turn" in row ? row.turn : null;
  const turnId = "turn" in row ? row.turn.id : row.message.turn_id;
  const [whole, setWhole] = useState<readonly Part[] | null>(null);
  const parts = "turn" in row ? shownParts(row.turn) : (whole ?? row.message.content);
  const { sources } = "turn" in row ? row.turn : row.message;
  const { steered } = "turn" in row ? row.turn : row;
  return (
    <article className={live ? "message is-assistant is-live" : "message is-assistant"} aria-label={words.thread.assistant} aria-busy={live && !live.wait ? true : undefined} data-turn={turnId}>
      <Parts turnId={turnId} threadId={threadId} parts={parts} sources={sources} steered={steered} isGrowing={live !== null && (live.text !== "" || live.reasoning !== "")} />
      {!live && parts.some((part) => "is_cut" in part && part.is_cut) && <ShowAll turnId={turnId} onLoaded={setWhole} />}
      {live?.wait && <WaitView threadId={threadId} turn={live} />}
      {"turn" in row ? <WaitingNote turn={row.turn} /> : <MessageFooter threadId={threadId} isBusy={isBusy} message={row.message} />}
    </article>
  );
}

function WaitingNote({ turn }: { turn: TurnDisplay }) {
  const waiting = waitingFor(turn);
  // The card, the step that runs, and the text or the thoughts that grow say it themselves.
  if (waiting === "approval" || waiting === "client_tools" || waiting === "words") return null;
  if (turn.content.some(isRunning) || (waiting === "first_word" && turn.reasoning)) return null;
  return (
    <div className="waiting">
      <span className="dots" aria-hidden="true">
        <i />
        <i />
        <i />
      </span>
      {waiting === "queue" ? words.thread.waiting : waiting === "tools" ? words.thread.calling : words.thread.thinking}
    </div>
  );
}

/** A message that is too long is stored cut. This loads all of it. */
function ShowAll({ turnId, onLoaded }: { turnId: string; onLoaded: (parts: readonly Part[]) => void }) {
  const { threads, notices } = useServices();
  const [isLoading, setIsLoading] = useState(false);
  const load = () => {
    setIsLoading(true);
    threads.wholeAnswer(turnId).then(onLoaded, (error: unknown) => {
      setIsLoading(false);
      notices.report(error);
    });
  };
  return (
    <p className="cut-note">
      {words.thread.cut}{" "}
      <button type="button" className="link" onClick={load} disabled={isLoading}>
        {words.thread.showAll}
      </button>
    </p>
  );
}

function MessageFooter({ threadId, isBusy, message }: { threadId: string; isBusy: boolean; message: Message }) {
  const title = [timeInWords(message.created_at), message.usage ? words.thread.tokens(message.usage.input_tokens, message.usage.output_tokens) : ""].filter(Boolean).join(" · ");
  return (
    <>
      {message.status !== "succeeded" && <TurnEnding threadId={threadId} turnId={message.turn_id} status={message.status} failure={message.error} isBusy={isBusy} />}
      {message.finish && message.finish !== "complete" && (
        <div className="ending" role="note">
          <Icon name="warn" />
          <span className="ending-text">{words.thread.finish[message.finish]}</span>
        </div>
      )}
      <div className="actions">
        <CopyButton text={() => messageText(message.content)} label={words.thread.copyAnswer} />
        <RegenerateButton threadId={threadId} turnId={message.turn_id} isBusy={isBusy} className="tool" label={words.thread.regenerate}>
          <Icon name="again" />
        </RegenerateButton>
        <VersionSwitch threadId={threadId} turnId={message.turn_id} siblings={message.siblings ?? []} isBusy={isBusy} />
        <span className="when" title={title}>
          {timeInWords(message.created_at)}
        </span>
      </div>
    </>
  );
}

/** The end of an answer that failed or was stopped: what happened, and a button to try again. */
export function TurnEnding({ threadId, turnId, status, failure, isBusy }: { threadId: string; turnId: string; status: Message["status"]; failure: Failure | null; isBusy: boolean }) {
  const isStopped = status === "cancelled";
  if (!isStopped && status !== "failed") return null;
  return (
    <div className={isStopped ? "ending" : "ending is-failure"} role="note">
      <Icon name={isStopped ? "stop" : "warn"} />
      <span className="ending-text">
        {isStopped ? words.thread.stopped : words.thread.failed} {!isStopped && failure && <span className="ending-why">{failure.message}</span>}
      </span>
      <RegenerateButton threadId={threadId} turnId={turnId} isBusy={isBusy} className="button">
        {words.thread.retry}
      </RegenerateButton>
    </div>
  );
}

/** Regenerates the answer. While another answer is written, it first asks whether to wait for it or to interrupt it. */
function RegenerateButton({ threadId, turnId, isBusy, className, label, children }: { threadId: string; turnId: string; isBusy: boolean; className: string; label?: string; children: React.ReactNode }) {
  const { branches } = useServices();
  const [isAsking, setIsAsking] = useState(false);
  const button = useRef<HTMLButtonElement>(null);
  const cancel = () => {
    flushSync(() => setIsAsking(false));
    button.current?.focus();
  };
  const regenerate = (ifBusy: IfBusy) => {
    cancel();
    void branches.regenerate(threadId, turnId, ifBusy);
  };
  if (!isAsking)
    return (
      <button ref={button} type="button" className={className} onClick={() => (isBusy ? setIsAsking(true) : regenerate("enqueue"))} aria-label={label} title={label}>
        {children}
      </button>
    );
  return (
    <span className="confirm" role="group" aria-label={words.thread.whenBusy} onKeyDown={(event) => event.key === "Escape" && cancel()}>
      <span>{words.thread.whenBusy}</span>
      <button type="button" className="button" onClick={() => regenerate("enqueue")} title={words.thread.againQueue} autoFocus>
        {words.thread.queue}
      </button>
      <button type="button" className="button" onClick={() => regenerate("interrupt")} title={words.thread.againInterrupt}>
        {words.thread.interrupt}
      </button>
      <button type="button" className="button" onClick={cancel}>
        {words.cancel}
      </button>
    </span>
  );
}

export function VersionSwitch({ threadId, turnId, siblings, isBusy }: { threadId: string; turnId: string; siblings: readonly string[]; isBusy: boolean }) {
  const { notices, branches } = useServices();
  const at = siblings.indexOf(turnId);
  if (siblings.length < 2 || at < 0) return null;
  const step = (by: number, label: string, icon: "left" | "right") => {
    const target = siblings[at + by];
    const show = () => {
      if (isBusy) notices.show(words.thread.branchBusy);
      else if (target) void branches.show(threadId, turnId, target);
    };
    return (
      <button type="button" className="tool" disabled={!target} aria-disabled={isBusy || undefined} onClick={show} aria-label={label} title={isBusy && target ? words.thread.branchBusy : label}>
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
