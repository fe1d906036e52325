/** Components that load or change something by themselves: their requests, and what they show while these run or fail. */
import { useCallback, useEffect, useState } from "react";

import { errorText, isNotFound } from "../effects/notices";
import { words } from "../words";
import { useServices } from "./context";

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

interface LoadedList<Item> {
  items: readonly Item[] | null;
  error: string | null;
  reload: () => void;
  /** Asks for the next ones; null: these are all. */
  more: (() => void) | null;
}

/** A list in parts: the first when it is shown, the next ones when somebody asks for them. */
export function useLoadedList<Item>(load: (cursor: string | null) => Promise<{ data: Item[]; next_cursor: string | null }>): LoadedList<Item> {
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

export function MoreButton({ list, label }: { list: { more: (() => void) | null }; label: string }) {
  return list.more === null ? null : (
    <button type="button" className="button is-more" onClick={list.more}>
      {label}
    </button>
  );
}

/** Run something that may be refused; the error stands beside the form until the next try. */
export function useSubmit(): { isSubmitting: boolean; error: string | null; submit: (act: () => Promise<unknown>, done?: string) => Promise<boolean>; setError: (text: string) => void } {
  const { notices } = useServices();
  const [isSubmitting, setIsTrying] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const submit = async (act: () => Promise<unknown>, done?: string) => {
    setIsTrying(true);
    setError(null);
    try {
      await act();
      if (done) notices.show(done);
      return true;
    } catch (error) {
      setError(errorText(error));
      return false;
    } finally {
      setIsTrying(false);
    }
  };
  return { isSubmitting, error, submit, setError };
}

export function LoadStatus({ error, onRetry }: { error: string | null; onRetry: () => void }) {
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

export function ErrorText({ text }: { text: string | null }) {
  return text === null ? null : (
    <p role="alert" className="is-failure">
      {text}
    </p>
  );
}
