/** The list of conversations: pages of it, a search in it, and what was changed here before the server confirmed it. */
import type { Conversation, Page } from "../wire/types";

export interface History {
  readonly query: string;
  readonly status: "loading" | "ready" | "failed";
  readonly items: readonly Conversation[];
  readonly cursor: string | null;
  readonly isLoadingMore: boolean;
  /** Deleted here and still restorable with one click. */
  readonly removed: Conversation | null;
}

export type HistoryAction =
  | { type: "history/searched"; query: string }
  | { type: "history/loaded"; query: string; page: Page<Conversation> }
  | { type: "history/refreshed"; query: string; page: Page<Conversation> }
  | { type: "history/loading-more" }
  | { type: "history/more"; query: string; page: Page<Conversation> }
  | { type: "history/failed" }
  | { type: "history/changed"; conversation: Conversation }
  | { type: "history/renamed"; id: string; title: string | null }
  | { type: "history/removed"; id: string }
  | { type: "history/restored"; conversation: Conversation }
  | { type: "history/forgot-removed" };

export const newHistory: History = {
  query: "",
  status: "loading",
  items: [],
  cursor: null,
  isLoadingMore: false,
  removed: null,
};

export function reduceHistory(history: History, action: HistoryAction): History {
  switch (action.type) {
    case "history/searched":
      return { ...history, query: action.query, status: "loading", cursor: null };
    case "history/loaded":
      if (action.query !== history.query) return history;
      return { ...history, status: "ready", items: action.page.data, cursor: action.page.next_cursor, isLoadingMore: false };
    case "history/refreshed": {
      if (action.query !== history.query) return history;
      const fresh = new Set(action.page.data.map((one) => one.id));
      const last = action.page.data.at(-1);
      const older = last ? history.items.filter((one) => !fresh.has(one.id) && one.updated_at < last.updated_at) : [];
      const cursor = older.length ? history.cursor : action.page.next_cursor;
      return { ...history, status: "ready", items: [...action.page.data, ...(action.page.next_cursor ? older : [])], cursor };
    }
    case "history/loading-more":
      return { ...history, isLoadingMore: true };
    case "history/more": {
      if (action.query !== history.query) return history;
      const known = new Set(history.items.map((one) => one.id));
      const more = action.page.data.filter((one) => !known.has(one.id));
      return { ...history, items: [...history.items, ...more], cursor: action.page.next_cursor, isLoadingMore: false };
    }
    case "history/failed":
      return { ...history, status: history.items.length ? "ready" : "failed", isLoadingMore: false };
    case "history/changed": {
      const isKnown = history.items.some((one) => one.id === action.conversation.id);
      if (!isKnown) {
        // One that is older than all that is loaded comes with its own page.
        const last = history.items.at(-1);
        const isInside = history.cursor === null || last === undefined || action.conversation.updated_at >= last.updated_at;
        if (history.query || history.status !== "ready" || !isInside) return history;
        return { ...history, items: byUpdate([...history.items, action.conversation]) };
      }
      const items = history.items.map((one) => (one.id === action.conversation.id ? { ...action.conversation, ...snippetOf(one) } : one));
      return { ...history, items: history.query ? items : byUpdate(items) };
    }
    case "history/renamed":
      return {
        ...history,
        items: history.items.map((one) => (one.id === action.id ? { ...one, title: action.title } : one)),
      };
    case "history/removed":
      return {
        ...history,
        removed: history.items.find((one) => one.id === action.id) ?? history.removed,
        items: history.items.filter((one) => one.id !== action.id),
      };
    case "history/restored": {
      const items = byUpdate([...history.items.filter((one) => one.id !== action.conversation.id), action.conversation]);
      return { ...history, items, removed: null };
    }
    case "history/forgot-removed":
      return { ...history, removed: null };
    default:
      return action satisfies never;
  }
}

export type Age = "today" | "yesterday" | "week" | "month" | "older";

/** Conversations under the heading of their age, newest first. */
export function byAge(items: readonly Conversation[], now: Date): { age: Age; items: Conversation[] }[] {
  const groups: { age: Age; items: Conversation[] }[] = [];
  for (const item of items) {
    const age = ageOf(item.updated_at, now);
    const last = groups.at(-1);
    if (last?.age === age) last.items.push(item);
    else groups.push({ age, items: [item] });
  }
  return groups;
}

function ageOf(time: number, now: Date): Age {
  const midnight = (daysAgo: number) => new Date(now.getFullYear(), now.getMonth(), now.getDate() - daysAgo).getTime();
  if (time >= midnight(0)) return "today";
  if (time >= midnight(1)) return "yesterday";
  if (time >= midnight(7)) return "week";
  return time >= midnight(30) ? "month" : "older";
}

/** The pieces of a snippet or title; matches stand between `**`. */
export function marked(snippet: string): { text: string; isMatch: boolean }[] {
  return snippet
    .split("**")
    .map((text, place) => ({ text, isMatch: place % 2 === 1 }))
    .filter((piece) => piece.text !== "");
}

function byUpdate(items: readonly Conversation[]): Conversation[] {
  return [...items].sort((a, b) => b.updated_at - a.updated_at);
}

function snippetOf(one: Conversation): Partial<Conversation> {
  return one.snippet === undefined ? {} : { snippet: one.snippet };
}
