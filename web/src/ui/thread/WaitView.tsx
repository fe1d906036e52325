/** A turn that waits: a card with the calls about which a person decides, or a note that an app must answer. */
import { type ReactNode, useId, useLayoutEffect, useRef, useState, useSyncExternalStore } from "react";
import { flushSync } from "react-dom";

import { type Call, type CallDecision, decisionKey, decisionOf, mayDecide, openCalls, parseExact, type TurnDisplay, type TurnWait, writeExact } from "@turnkeep/client";
import type { NewDecision } from "../../effects/approvals";
import { pathOf } from "../../state/route";
import { timeInWords, words } from "../../words";
import { useSelect, useServices } from "../context";
import { CopyButton } from "../CopyButton";
import { Icon } from "../Icon";

interface Props {
  threadId: string;
  turn: TurnDisplay;
}

export default function WaitView({ threadId, turn }: Props) {
  const { wait } = turn;
  if (!wait) return null;
  return wait.approvals.length ? <ApprovalCard threadId={threadId} turn={turn} wait={wait} /> : <ClientCallsNote threadId={threadId} wait={wait} />;
}

/** The app that asked runs these calls. This page cannot, and says so. */
function ClientCallsNote({ threadId, wait }: { threadId: string; wait: TurnWait }) {
  const { threads } = useServices();
  const names = [...new Set(wait.clientCalls.map((call) => visible(call.name)))].join(", ");
  return (
    <section className="wait-card" aria-label={words.wait.clientTitle}>
      <h3>
        <Icon name="clock" />
        {words.wait.clientTitle}
      </h3>
      <p>{words.wait.client(names)}</p>
      <div className="wait-foot">
        <span>{words.wait.clientExpires(timeInWords(wait.expires_at))}</span>
        <button type="button" className="button" onClick={() => void threads.stop(threadId)}>
          {words.composer.stop}
        </button>
      </div>
    </section>
  );
}

function ApprovalCard({ threadId, turn, wait }: Props & { wait: TurnWait }) {
  const { approvals } = useServices();
  const thread = useSelect((state) => state.threads[threadId]);
  const me = useSelect((state) => state.me);
  const card = useRef<HTMLElement>(null);
  const id = useId();
  useFocusAfterCard(card);
  const isYours = !thread || mayDecide(thread, me);
  const open = openCalls(thread, wait);
  const count = wait.approvals.length;
  const decideAll = (decision: NewDecision["decision"]) => {
    card.current?.focus();
    void approvals.decideAll(threadId, { decision });
  };
  return (
    <section ref={card} className="wait-card is-approval" aria-labelledby={id} tabIndex={-1}>
      <h3 id={id}>
        <Icon name="hand" />
        {isYours ? words.wait.title(count) : words.wait.titleOthers(count)}
      </h3>
      {wait.approvals.map((call, at) => (
        <CallRow
          key={`${at}:${decisionKey(wait, call.id)}`}
          threadId={threadId}
          draftKey={`call:${turn.id}:${decisionKey(wait, call.id)}`}
          call={call}
          decision={decisionOf(thread, wait, call.id)}
          canDecide={isYours}
          onDecided={() => card.current?.focus()}
        />
      ))}
      {!isYours && (
        <p className="wait-who">
          {words.wait.who(thread?.waitFacts?.approvers.includes("admin") ?? true)}
          <CopyButton text={() => location.origin + pathOf({ page: "turn", turnId: turn.id })} label={words.wait.copyLink} />
        </p>
      )}
      {wait.clientCalls.length > 0 && <p>{words.wait.alsoClient([...new Set(wait.clientCalls.map((call) => visible(call.name)))].join(", "))}</p>}
      <div className="wait-foot">
        <span>{open.length ? words.wait.expires(timeInWords(wait.expires_at)) : words.wait.goesOn}</span>
        {isYours && open.length > 1 && (
          <>
            <button type="button" className="button" onClick={() => decideAll("deny")}>
              {words.wait.denyAll}
            </button>
            <button type="button" className="button" onClick={() => decideAll("allow")}>
              {words.wait.allowAll}
            </button>
          </>
        )}
      </div>
    </section>
  );
}

interface CallProps {
  threadId: string;
  /** Under which what is typed here is kept until it is sent. */
  draftKey: string;
  call: Call;
  decision: CallDecision | undefined;
  canDecide: boolean;
  onDecided: () => void;
}

function CallRow({ threadId, draftKey, call, decision, canDecide, onDecided }: CallProps) {
  const { approvals, drafts } = useServices();
  const reason = useDraft(`${draftKey}:reason`);
  const edited = useDraft(`${draftKey}:args`);
  const [mode, setMode] = useState<"ask" | "deny" | "edit">(() => (edited.text ? "edit" : reason.text ? "deny" : "ask"));
  const row = useRef<HTMLDivElement>(null);
  const isOpen = !decision || decision.status === "failed";
  const decide = (made: NewDecision) => {
    // The pressed button goes away and would lose the focus.
    onDecided();
    void approvals.decide(threadId, call.id, made).then((isHeld) => {
      if (!isHeld) return;
      for (const name of ["reason", "args"]) drafts.set(`${draftKey}:${name}`, "");
    });
  };
  const openEditor = () => {
    edited.set(writeExact(call.exactArgs ?? call.args ?? {}, 2));
    setMode("edit");
  };
  const cancel = () => {
    for (const name of ["reason", "args"]) drafts.set(`${draftKey}:${name}`, "");
    flushSync(() => setMode("ask"));
    row.current?.querySelector<HTMLElement>("button")?.focus();
  };
  return (
    <div ref={row} className="call" role="group" aria-label={words.wait.call(visible(call.name))} data-call={call.id}>
      <p className="call-name">{visible(call.name)}</p>
      {!(isOpen && canDecide && mode === "edit") && <Arguments args={call.exactArgs ?? call.args} />}
      {decision && !isOpen && <Decided decision={decision} />}
      {decision?.status === "failed" && (
        <p className="is-failure" role="alert">
          {decision.error}
        </p>
      )}
      {isOpen && canDecide && mode === "ask" && (
        <div className="call-buttons">
          <button type="button" className="button is-main" onClick={() => decide({ decision: "allow" })}>
            {words.wait.allow}
          </button>
          <button type="button" className="button" onClick={() => setMode("deny")}>
            {words.wait.deny}
          </button>
          <button type="button" className="button" onClick={openEditor}>
            {words.wait.edit}
          </button>
          <button type="button" className="button" title={words.wait.alwaysHint(visible(call.name))} onClick={() => decide({ decision: "allow", remember: "conversation" })}>
            {words.wait.always}
          </button>
        </div>
      )}
      {isOpen && canDecide && mode === "deny" && (
        <DenyForm text={reason.text} onText={reason.set} onCancel={cancel} onDeny={(why) => decide({ decision: "deny", ...(why ? { reason: why } : {}) })} />
      )}
      {isOpen && canDecide && mode === "edit" && (
        <EditForm text={edited.text} onText={edited.set} onCancel={cancel} onAllow={(args) => decide({ decision: "allow", args })} />
      )}
    </div>
  );
}

function Decided({ decision }: { decision: CallDecision }) {
  return (
    <p className="call-decided">
      {decision.status === "sending" ? <span className="spinner" /> : <Icon name={decision.decision === "deny" ? "close" : "check"} />}
      {words.wait.decided(decision)}
    </p>
  );
}

/** The model reads the reason, so that it can do something else. */
function DenyForm({ text, onText, onDeny, onCancel }: { text: string; onText: (text: string) => void; onDeny: (reason: string) => void; onCancel: () => void }) {
  const id = useId();
  return (
    <CallForm onSubmit={() => onDeny(text.trim())} onCancel={onCancel}>
      <label htmlFor={id}>{words.wait.reason}</label>
      <textarea id={id} rows={2} maxLength={2_000} value={text} autoFocus onChange={(event) => onText(event.target.value)} />
      <div className="call-buttons">
        <button type="submit" className="button is-danger">
          {words.wait.deny}
        </button>
        <button type="button" className="button" onClick={onCancel}>
          {words.cancel}
        </button>
      </div>
    </CallForm>
  );
}

function EditForm({ text, onText, onAllow, onCancel }: { text: string; onText: (text: string) => void; onAllow: (args: Record<string, never>) => void; onCancel: () => void }) {
  const id = useId();
  const { args, error } = parsedArguments(text);
  return (
    <CallForm onSubmit={() => args && onAllow(args)} onCancel={onCancel}>
      <label htmlFor={id}>{words.wait.arguments}</label>
      <textarea
        id={id}
        className="is-code"
        rows={Math.min(16, text.split("\n").length + 1)}
        value={text}
        spellCheck={false}
        autoFocus
        aria-invalid={error !== null}
        aria-describedby={`${id}-error`}
        onChange={(event) => onText(event.target.value)}
      />
      <p id={`${id}-error`} className="is-failure" role="status">
        {error}
      </p>
      <div className="call-buttons">
        <button type="submit" className="button is-main" disabled={args === null}>
          {words.wait.allowEdited}
        </button>
        <button type="button" className="button" onClick={onCancel}>
          {words.cancel}
        </button>
      </div>
    </CallForm>
  );
}

/** A form of a call. Ctrl+Enter sends it, Escape closes it. */
function CallForm({ onSubmit, onCancel, children }: { onSubmit: () => void; onCancel: () => void; children: ReactNode }) {
  return (
    <form
      className="call-form"
      onSubmit={(event) => {
        event.preventDefault();
        onSubmit();
      }}
      onKeyDown={(event) => {
        if (event.key === "Escape") onCancel();
        if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
          event.preventDefault();
          onSubmit();
        }
      }}
    >
      {children}
    </form>
  );
}

function parsedArguments(text: string): { args: Record<string, never> | null; error: string | null } {
  try {
    const value: unknown = parseExact(text);
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return { args: value as Record<string, never>, error: null };
    return { args: null, error: words.wait.notAnObject };
  } catch (error) {
    return { args: null, error: words.wait.notJson(error instanceof Error ? error.message : "") };
  }
}

/** Arguments whose values are programs, which are shown as they are. */
const PROGRAMS = new Set(["command", "cmd", "script", "code", "sql", "query"]);

function Arguments({ args }: { args: unknown }) {
  const entries = typeof args === "object" && args !== null && !Array.isArray(args) ? Object.entries(args) : [["", args] as const];
  if (entries.length === 0) return <p className="faint">{words.wait.noArguments}</p>;
  return (
    <dl className="call-args">
      {entries.map(([name, value]) => (
        <div key={name} className={typeof value === "string" && PROGRAMS.has(name) ? "is-program" : undefined}>
          <dt>{visible(name)}</dt>
          <dd>
            <pre tabIndex={0} role="region" aria-label={visible(name)}>
              {visible(typeof value === "string" ? value : writeExact(value, 2))}
            </pre>
          </dd>
        </div>
      ))}
    </dl>
  );
}

const HIDDEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** A text with the characters that cannot be seen, or change the order of others, written out. What is allowed must be what is read. */
function visible(text: string): string {
  return text.replaceAll(HIDDEN, (found) => `\\u${found.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

function useDraft(key: string): { text: string; set: (text: string) => void } {
  const { drafts } = useServices();
  const text = useSyncExternalStore(drafts.subscribe, () => drafts.get(key));
  return { text, set: (changed) => drafts.set(key, changed) };
}

/** When the card ends, the focus goes from it to the message box. On a phone this would open the keyboard. */
function useFocusAfterCard(card: { current: HTMLElement | null }): void {
  useLayoutEffect(() => {
    const element = card.current;
    return () => {
      if (!element?.contains(document.activeElement)) return;
      queueMicrotask(() => {
        if (matchMedia("(pointer: fine)").matches) document.getElementById("message")?.focus();
      });
    };
  }, [card]);
}
