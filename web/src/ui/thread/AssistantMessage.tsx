/** An answer. One component draws it while it is written and afterwards, so that open steps, selection and focus stay. */
import { Fragment, lazy, Suspense, useRef, useState } from "react";
import { flushSync } from "react-dom";

import { type Failure, type IfBusy, isRunning, type Message, messageText, type Part, shownParts, type SteeredWords, type TurnDisplay, versionsOf, waitingFor } from "@turnkeep/client";
import { isEmbedded } from "../../effects/addresses";
import { isAdmin } from "../../state/selectors";
import { durationInWords, modelInWords, timeInWords, words } from "../../words";
import { useSelect, useServices } from "../context";
import { CopyButton } from "../CopyButton";
import { Icon } from "../Icon";
import { RouteLink } from "../RouteLink";
import { FeedbackButtons, FeedbackForm } from "./FeedbackButtons";
import { Parts } from "./Parts";

const WaitView = lazy(() => import("./WaitView"));

interface Props {
  threadId: string;
  isBusy: boolean;
  /** The turn while it runs, the message when it has ended. */
  row: { turn: TurnDisplay } | { message: Message; steered: readonly SteeredWords[]; askedAt: number | null };
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
      {live?.wait && (
        <Suspense>
          <WaitView threadId={threadId} turn={live} />
        </Suspense>
      )}
      {"turn" in row ? <WaitingNote turn={row.turn} /> : <MessageFooter threadId={threadId} isBusy={isBusy} message={row.message} askedAt={row.askedAt} />}
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
      <TimelineLink turnId={turn.id} />
    </div>
  );
}

/** Leads to what happened in the turn. An embedded chat has only chats. */
function TimelineLink({ turnId }: { turnId: string }) {
  if (isEmbedded) return null;
  return (
    <RouteLink className="tool to-timeline" route={{ page: "timeline", turnId }} aria-label={words.timeline.title} title={words.timeline.title}>
      <Icon name="clock" />
    </RouteLink>
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

/** The answer as HTML. Loaded when it is copied. */
async function htmlOfAnswer(button: Element): Promise<string> {
  const article = button.closest("article");
  const { htmlOf } = await import("../markdown/copies");
  return article ? htmlOf(article) : "";
}

function MessageFooter({ threadId, isBusy, message, askedAt }: { threadId: string; isBusy: boolean; message: Message; askedAt: number | null }) {
  const [isCommenting, setIsCommenting] = useState(false);
  return (
    <>
      {message.status !== "succeeded" && <TurnEnding threadId={threadId} turnId={message.turn_id} status={message.status} failure={message.error} isBusy={isBusy} />}
      {message.finish && message.finish !== "complete" && (
        <div className="ending" role="note">
          <Icon name="warn" />
          <span className="ending-text">{words.thread.finish[message.finish]}</span>
          {message.finish === "length" && <ContinueButton threadId={threadId} message={message} isBusy={isBusy} />}
        </div>
      )}
      <div className="actions">
        <CopyButton text={() => messageText(message.content)} label={words.thread.copyAnswer} html={htmlOfAnswer} />
        <RegenerateButton threadId={threadId} turnId={message.turn_id} isBusy={isBusy} className="tool" label={words.thread.regenerate}>
          <Icon name="again" />
        </RegenerateButton>
        <FeedbackButtons threadId={threadId} turnId={message.turn_id} isCommenting={isCommenting} onComment={setIsCommenting} />
        <TimelineLink turnId={message.turn_id} />
        <AnswerVersions threadId={threadId} turnId={message.turn_id} versions={versionsOf(message)} isBusy={isBusy} />
        <AnswerFacts message={message} askedAt={askedAt} />
      </div>
      {isCommenting && <FeedbackForm threadId={threadId} turnId={message.turn_id} onClose={() => setIsCommenting(false)} />}
    </>
  );
}

/** Which model wrote the answer, how many tokens it wrote, how long it took, and when it was complete. */
function AnswerFacts({ message, askedAt }: { message: Message; askedAt: number | null }) {
  const { usage, model } = message;
  const took = askedAt === null ? 0 : message.created_at - askedAt;
  const facts = [
    model ? modelInWords(model) : "",
    usage?.output_tokens ? words.thread.tokenCount(usage.output_tokens) : "",
    took > 0 ? durationInWords(took) : "",
    timeInWords(message.created_at),
  ];
  const title = [model ?? "", usage ? words.thread.tokens(usage.input_tokens, usage.output_tokens) : "", took > 0 ? words.thread.took(durationInWords(took)) : ""];
  return (
    <span className="when" title={title.filter(Boolean).join(" · ")}>
      {facts.filter(Boolean).map((fact, at) => (
        <Fragment key={at}>
          {at > 0 && " · "}
          <bdi>{fact}</bdi>
        </Fragment>
      ))}
    </span>
  );
}

/** Asks the model to go on with an answer that ended at its limit. Only the newest answer can be continued. */
function ContinueButton({ threadId, message, isBusy }: { threadId: string; message: Message; isBusy: boolean }) {
  const { outbox } = useServices();
  const isNewest = useSelect((state) => state.threads[threadId]?.messages.at(-1)?.id === message.id);
  if (!isNewest || isBusy) return null;
  const send = () => void outbox.send({ text: words.thread.continueMessage, attachments: [], agentId: null, model: null, ifBusy: "enqueue" });
  return (
    <button type="button" className="button" onClick={send}>
      {words.thread.continue}
    </button>
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
        {isStopped ? words.thread.stopped : words.thread.failed} {!isStopped && failure && <FailureText failure={failure} />}
      </span>
      <RegenerateButton threadId={threadId} turnId={turnId} isBusy={isBusy} className="button">
        {words.thread.retry}
      </RegenerateButton>
    </div>
  );
}

/** What a reader can do about it. What the server said is for admins, unless the page has no words of its own for it. */
export function FailureText({ failure: { code, message } }: { failure: Failure }) {
  const isForAdmin = useSelect(isAdmin);
  const told = words.thread.failures[code];
  return (
    <>
      {told && <span className="ending-why">{told}</span>}
      {(!told || isForAdmin) && <span className={told ? "ending-details" : "ending-why"}>{message}</span>}
    </>
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

interface VersionProps {
  threadId: string;
  turnId: string;
  /** One group of turns for each version of the question. The turns of a group answer the same one. */
  versions: readonly (readonly string[])[];
  isBusy: boolean;
}

/** Switches between the answers to the same question. */
export function AnswerVersions({ threadId, turnId, versions, isBusy }: VersionProps) {
  const turns = versions.find((group) => group.includes(turnId)) ?? [];
  return <VersionSwitch threadId={threadId} turnId={turnId} targets={turns} at={turns.indexOf(turnId)} labels={words.thread.answerVersions} isBusy={isBusy} />;
}

/** Switches between the versions of a question. Of each, the newest answer is shown. */
export function QuestionVersions({ threadId, turnId, versions, isBusy }: VersionProps) {
  const targets = versions.flatMap((group) => group.at(-1) ?? []);
  return <VersionSwitch threadId={threadId} turnId={turnId} targets={targets} at={versions.findIndex((group) => group.includes(turnId))} labels={words.thread.questionVersions} isBusy={isBusy} />;
}

interface SwitchProps {
  threadId: string;
  turnId: string;
  targets: readonly string[];
  at: number;
  labels: typeof words.thread.answerVersions | typeof words.thread.questionVersions;
  isBusy: boolean;
}

function VersionSwitch({ threadId, turnId, targets, at, labels, isBusy }: SwitchProps) {
  const { notices, branches } = useServices();
  if (targets.length < 2 || at < 0) return null;
  const step = (by: number, label: string, icon: "left" | "right") => {
    const target = targets[at + by];
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
      {step(-1, labels.previous, "left")}
      <span className="branch-count" aria-label={labels.count(at + 1, targets.length)} title={labels.count(at + 1, targets.length)} role="img">
        {at + 1}/{targets.length}
      </span>
      {step(1, labels.next, "right")}
    </span>
  );
}
