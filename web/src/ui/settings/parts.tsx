/** Pieces that the sections of the settings share. */
import { type ReactNode, useCallback, useEffect, useId, useState } from "react";

import { isNotFound, errorText } from "../../effects/notices";
import { words } from "../../words";
import { useServices } from "../context";

interface Loaded<Value> {
  value: Value | null;
  error: string | null;
  /** Whether the error is that it is not there. */
  isGone: boolean;
  reload: () => void;
}

/** What a section shows, from the moment it is asked for. */
export function useLoaded<Value>(load: () => Promise<Value>): Loaded<Value> {
  const { session } = useServices();
  const [value, setValue] = useState<Value | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const [asked, setAsked] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    load().then(
      (loaded) => {
        if (!isCurrent) return;
        setValue(loaded);
        setFailure(null);
      },
      (refused: unknown) => {
        if (isCurrent && !session.hasEnded(refused)) setFailure(refused);
      },
    );
    return () => {
      isCurrent = false;
    };
  }, [load, asked, session]);
  const reload = useCallback(() => setAsked((times) => times + 1), []);
  return { value, error: failure === null ? null : errorText(failure), isGone: isNotFound(failure), reload };
}

interface Listed<Item> {
  items: readonly Item[] | null;
  error: string | null;
  reload: () => void;
  /** Asks for the next ones; null: these are all. */
  more: (() => void) | null;
}

/** A list in parts: the first when it is shown, the next ones when somebody asks for them. */
export function useListed<Item>(load: (cursor: string | null) => Promise<{ data: Item[]; next_cursor: string | null }>): Listed<Item> {
  const { notices } = useServices();
  const first = useLoaded(useCallback(() => load(null), [load]));
  const [rest, setRest] = useState<{ of: typeof first.value; items: readonly Item[]; next: string | null } | null>(null);
  const following = rest?.of === first.value ? rest : null;
  const next = following ? following.next : (first.value?.next_cursor ?? null);
  const more = async (cursor: string) => {
    try {
      const page = await load(cursor);
      setRest({ of: first.value, items: [...(following?.items ?? []), ...page.data], next: page.next_cursor });
    } catch (error) {
      notices.report(error);
    }
  };
  return {
    items: first.value && [...first.value.data, ...(following?.items ?? [])],
    error: first.error,
    reload: first.reload,
    more: next === null ? null : () => void more(next),
  };
}

export function More({ list, label }: { list: { more: (() => void) | null }; label: string }) {
  return list.more === null ? null : (
    <button type="button" className="button is-more" onClick={list.more}>
      {label}
    </button>
  );
}

/** Run something that may be refused; the refusal stands beside the form until the next try. */
export function useTrying(): { isTrying: boolean; refusal: string | null; attempt: (act: () => Promise<unknown>, done?: string) => Promise<boolean>; refuse: (text: string) => void } {
  const { notices } = useServices();
  const [isTrying, setIsTrying] = useState(false);
  const [refusal, setRefusal] = useState<string | null>(null);
  const attempt = async (act: () => Promise<unknown>, done?: string) => {
    setIsTrying(true);
    setRefusal(null);
    try {
      await act();
      if (done) notices.show(done);
      return true;
    } catch (error) {
      setRefusal(errorText(error));
      return false;
    } finally {
      setIsTrying(false);
    }
  };
  return { isTrying, refusal, attempt, refuse: setRefusal };
}

export function Loading({ error, onRetry }: { error: string | null; onRetry: () => void }) {
  if (error === null) return <p className="faint">{words.settings.loading}</p>;
  return (
    <p role="alert" className="is-failure">
      {error}{" "}
      <button type="button" className="link" onClick={onRetry}>
        {words.retry}
      </button>
    </p>
  );
}

export function Refusal({ text }: { text: string | null }) {
  return text === null ? null : (
    <p role="alert" className="is-failure">
      {text}
    </p>
  );
}

interface FieldProps {
  label: string;
  hint?: string;
  value: string;
  onChange: (value: string) => void;
  rows?: number;
  isCode?: boolean;
  type?: "text" | "number" | "url";
  isRequired?: boolean;
  isDisabled?: boolean;
}

export function Field({ label, hint, value, onChange, rows, isCode, type = "text", isRequired, isDisabled }: FieldProps) {
  const id = useId();
  const shared = {
    id,
    value,
    required: isRequired ?? false,
    disabled: isDisabled ?? false,
    className: isCode ? "is-code" : undefined,
    spellCheck: !isCode,
    "aria-describedby": hint ? `${id}-hint` : undefined,
    onChange: (event: { target: { value: string } }) => onChange(event.target.value),
  };
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      {rows ? <textarea {...shared} rows={rows} /> : <input {...shared} type={type} {...(type === "number" ? { min: 0 } : {})} autoComplete="off" />}
      {hint && (
        <p id={`${id}-hint`} className="faint">
          {hint}
        </p>
      )}
    </div>
  );
}

export function Choice({ label, value, onChange, children, isDisabled }: { label: string; value: string; onChange: (value: string) => void; children: ReactNode; isDisabled?: boolean }) {
  const id = useId();
  return (
    <div className="field">
      <label htmlFor={id}>{label}</label>
      <select id={id} value={value} disabled={isDisabled ?? false} onChange={(event) => onChange(event.target.value)}>
        {children}
      </select>
    </div>
  );
}

export function Switch({ label, hint, isOn, onChange }: { label: string; hint?: string; isOn: boolean; onChange: (isOn: boolean) => void }) {
  const id = useId();
  return (
    <div className="field is-switch">
      <input id={id} type="checkbox" role="switch" checked={isOn} onChange={(event) => onChange(event.target.checked)} aria-describedby={hint ? `${id}-hint` : undefined} />
      <label htmlFor={id}>{label}</label>
      {hint && (
        <p id={`${id}-hint`} className="faint">
          {hint}
        </p>
      )}
    </div>
  );
}

/** A button that asks once more before it does something that cannot be undone. */
export function Sure({ label, ariaLabel, question, onSure }: { label: string; ariaLabel: string; question: string; onSure: () => void }) {
  const [isAsking, setIsAsking] = useState(false);
  if (!isAsking)
    return (
      <button type="button" className="button" onClick={() => setIsAsking(true)} aria-label={ariaLabel}>
        {label}
      </button>
    );
  return (
    <span className="sure" role="group" aria-label={question}>
      <span>{question}</span>
      <button type="button" className="button is-danger" onClick={onSure} autoFocus>
        {words.settings.sure}
      </button>
      <button type="button" className="button" onClick={() => setIsAsking(false)}>
        {words.settings.notSure}
      </button>
    </span>
  );
}
