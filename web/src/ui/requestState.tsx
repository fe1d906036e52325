/** Components that load or change something by themselves: their requests, and what they show while these run or fail. */
import { useCallback, useEffect, useState } from "react";

import { errorText, isNotFound } from "../effects/notices";
import { words } from "../words";
import { useServices } from "./context";

interface Loaded<Value> {
  value: Value | null;
  error: string | null;
  /** Whether it does not exist, or the user may not see it. */
  isMissing: boolean;
  reload: () => void;
}

/** A value that a component loads when it is drawn. */
export function useLoaded<Value>(load: () => Promise<Value>): Loaded<Value> {
  const { session } = useServices();
  const [value, setValue] = useState<Value | null>(null);
  const [failure, setFailure] = useState<unknown>(null);
  const [loads, setLoads] = useState(0);
  useEffect(() => {
    let isCurrent = true;
    load().then(
      (loaded) => {
        if (!isCurrent) return;
        setValue(loaded);
        setFailure(null);
      },
      (reason: unknown) => {
        if (isCurrent && !session.hasEnded(reason)) setFailure(reason);
      },
    );
    return () => {
      isCurrent = false;
    };
  }, [load, loads, session]);
  const reload = useCallback(() => setLoads((times) => times + 1), []);
  return { value, error: failure === null ? null : errorText(failure), isMissing: isNotFound(failure), reload };
}

interface LoadedList<Item> {
  items: readonly Item[] | null;
  error: string | null;
  reload: () => void;
  /** Loads the next items; null if there are no more. */
  more: (() => void) | null;
}

/** A list that is loaded page by page: the first when the component is drawn, the next ones on request. */
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

/** Submit a change. If the server refuses it, `error` says why until the next try. For a sign-in, a 401 is such a refusal. */
export function useSubmit({ isSignIn = false } = {}): { isSubmitting: boolean; error: string | null; submit: (act: () => Promise<unknown>, done?: string) => Promise<boolean>; setError: (text: string) => void } {
  const { notices, session } = useServices();
  const [isSubmitting, setIsSubmitting] = useState(false);
  const [error, setError] = useState<string | null>(null);
  const submit = async (act: () => Promise<unknown>, done?: string) => {
    setIsSubmitting(true);
    setError(null);
    try {
      await act();
      if (done) notices.show(done);
      return true;
    } catch (error) {
      if (isSignIn || !session.hasEnded(error)) setError(errorText(error));
      return false;
    } finally {
      setIsSubmitting(false);
    }
  };
  return { isSubmitting, error, submit, setError };
}

/** While a form has changes that are not saved, leaving it asks first. The returned function asks before it closes the form. */
export function useUnsaved(isChanged: boolean): (close: () => void) => void {
  const { navigation } = useServices();
  useEffect(() => (isChanged ? navigation.hold() : undefined), [isChanged, navigation]);
  return (close) => {
    if (navigation.mayLeave()) close();
  };
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
