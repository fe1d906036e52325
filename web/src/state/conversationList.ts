/** The list of conversations: its loaded part, a search, and changes that the server has not confirmed yet. */
import type { Conversation, ListPage, Me, OutgoingMessage } from "@turnkeep/client";
import type { Passage } from "./route";

export interface ConversationList {
  readonly query: string;
  readonly status: "loading" | "ready" | "failed";
  readonly items: readonly Conversation[];
  readonly cursor: string | null;
  readonly isLoadingMore: boolean;
  /** The conversation that was just deleted here and can be restored with one click. */
  readonly removed: Conversation | null;
}

export type ConversationListAction =
  | { type: "conversations/searched"; query: string }
  | { type: "conversations/loaded"; query: string; page: ListPage<Conversation> }
  /** `known` are the conversations that were listed when the request was sent. */
  | { type: "conversations/refreshed"; query: string; page: ListPage<Conversation>; known: ReadonlySet<string> }
  | { type: "conversations/loading-more" }
  | { type: "conversations/more"; query: string; page: ListPage<Conversation> }
  | { type: "conversations/failed" }
  | { type: "conversations/changed"; conversation: Conversation }
  /** The turn of a conversation begins to wait, or goes on. */
  | { type: "conversations/waiting"; id: string; turn_id: string; waiting_for: "approval" | "client_tools" | null }
  /** The turn of a conversation has ended. */
  | { type: "conversations/ended"; id: string; turn_id: string }
  | { type: "conversations/renamed"; id: string; title: string | null }
  | { type: "conversations/removed"; id: string }
  | { type: "conversations/restored"; conversation: Conversation }
  | { type: "conversations/forgot-removed" };

export const newConversationList: ConversationList = {
  query: "",
  status: "loading",
  items: [],
  cursor: null,
  isLoadingMore: false,
  removed: null,
};

export function reduceConversationList(list: ConversationList, action: ConversationListAction): ConversationList {
  switch (action.type) {
    case "conversations/searched":
      return { ...list, query: action.query, status: "loading", cursor: null };
    case "conversations/loaded":
      if (action.query !== list.query) return list;
      return { ...list, status: "ready", items: action.page.data, cursor: action.page.next_cursor, isLoadingMore: false };
    case "conversations/refreshed": {
      if (action.query !== list.query) return list;
      const fresh = new Set(action.page.data.map((one) => one.id));
      const last = action.page.data.at(-1);
      const older = last ? list.items.filter((one) => !fresh.has(one.id) && one.updated_at < last.updated_at) : [];
      const cursor = older.length ? list.cursor : action.page.next_cursor;
      // Those that came while the request was under way are not in its response.
      const newer = list.items.filter((one) => !fresh.has(one.id) && !action.known.has(one.id) && !older.includes(one));
      return { ...list, status: "ready", items: [...newer, ...action.page.data, ...(action.page.next_cursor ? older : [])], cursor };
    }
    case "conversations/loading-more":
      return { ...list, isLoadingMore: true };
    case "conversations/more": {
      if (action.query !== list.query) return list;
      const known = new Set(list.items.map((one) => one.id));
      const more = action.page.data.filter((one) => !known.has(one.id));
      return { ...list, items: [...list.items, ...more], cursor: action.page.next_cursor, isLoadingMore: false };
    }
    case "conversations/failed":
      return { ...list, status: list.items.length ? "ready" : "failed", isLoadingMore: false };
    case "conversations/changed": {
      const isKnown = list.items.some((one) => one.id === action.conversation.id);
      if (!isKnown) {
        // A conversation that is older than the loaded ones will be loaded later.
        const last = list.items.at(-1);
        const isInside = list.cursor === null || last === undefined || action.conversation.updated_at >= last.updated_at;
        if (list.query || list.status !== "ready" || !isInside) return list;
        return { ...list, items: byUpdate([...list.items, action.conversation]) };
      }
      const items = list.items.map((one) => (one.id === action.conversation.id ? { ...action.conversation, ...snippetOf(one) } : one));
      return { ...list, items: list.query ? items : byUpdate(items) };
    }
    case "conversations/waiting": {
      const { id, turn_id: turnId, waiting_for: waiting } = action;
      const isChanged = (one: Conversation) => one.id === id && one.running_turn?.id === turnId && (one.running_turn.waiting_for ?? null) !== waiting;
      if (!list.items.some(isChanged)) return list;
      const running = { id: turnId, events_url: `/v1/turns/${turnId}/events`, ...(waiting ? { waiting_for: waiting } : {}) };
      return { ...list, items: list.items.map((one) => (isChanged(one) ? { ...one, running_turn: running } : one)) };
    }
    case "conversations/ended": {
      const hasEnded = (one: Conversation) => one.id === action.id && one.running_turn?.id === action.turn_id;
      return list.items.some(hasEnded) ? { ...list, items: list.items.map((one) => (hasEnded(one) ? { ...one, running_turn: null } : one)) } : list;
    }
    case "conversations/renamed":
      return {
        ...list,
        items: list.items.map((one) => (one.id === action.id ? { ...one, title: action.title } : one)),
      };
    case "conversations/removed":
      return {
        ...list,
        removed: list.items.find((one) => one.id === action.id) ?? list.removed,
        items: list.items.filter((one) => one.id !== action.id),
      };
    case "conversations/restored": {
      const items = byUpdate([...list.items.filter((one) => one.id !== action.conversation.id), action.conversation]);
      return { ...list, items, removed: null };
    }
    case "conversations/forgot-removed":
      return { ...list, removed: null };
    default:
      return action satisfies never;
  }
}

const TITLE_CHARS = 80;

/** A conversation that this page has just begun, until the server has told how it keeps it. */
export function newConversation(id: string, outgoing: OutgoingMessage, turnId: string, me: Me, now: number): Conversation {
  const line = outgoing.text.split("\n").find((each) => each.trim() !== "") ?? null;
  return {
    id,
    workspace_id: me.workspace_id,
    user: me.user,
    user_id: me.user_id,
    kind: "chat",
    agent_id: outgoing.agent_id,
    model: outgoing.model,
    workflow_id: null,
    external_id: null,
    title: line && line.trim().slice(0, TITLE_CHARS),
    preview: line,
    message_count: 1,
    turn_count: 1,
    head_turn_id: null,
    running_turn: { id: turnId, events_url: `/v1/turns/${turnId}/events` },
    metadata: {},
    created_at: now,
    updated_at: now,
  };
}

export type Age = "today" | "yesterday" | "week" | "month" | "older";

/** Conversations in groups by age, newest first. */
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

/** The pieces of a snippet. Matches are between `**`, and so is bold text of a message, which has other words than the query. */
export function snippetPieces(snippet: string, query: string): { text: string; isMatch: boolean }[] {
  const sought = wordsOf(query);
  const isFound = (word: string) => sought.some((one) => word.startsWith(one) || one.includes(word));
  // A match begins and ends with a letter, and the text between two matches mostly does not.
  const isMatch = (text: string) => text === text.trim() && wordsOf(text).length > 0 && wordsOf(text).every(isFound);
  return snippet
    .split("**")
    .map((text, place, all) => ({ text, isMatch: place > 0 && place < all.length - 1 && isMatch(text) }))
    .filter((piece) => piece.text !== "");
}

const wordsOf = (text: string): string[] => text.normalize("NFKC").toLowerCase().match(/[\p{L}\p{M}\p{N}]+/gu) ?? [];

/** The passage that a search found in a conversation; undefined where only the title has the words. */
export function hitOf({ snippet, title, preview }: Conversation, query: string): Passage | undefined {
  if (!snippet) return undefined;
  const pieces = snippetPieces(snippet, query);
  const quote = pieces.map((piece) => piece.text).join("").replaceAll("…", " ").trim();
  // A title is the beginning of the first message, unless somebody has changed it.
  if (isPartOf(quote, title) && !isPartOf(quote, preview)) return undefined;
  return { quote, found: [...new Set(pieces.flatMap((piece) => (piece.isMatch ? [piece.text] : [])))].join(" ") };
}

const isPartOf = (text: string, whole: string | null): boolean => whole !== null && whole.replaceAll(/\s+/g, " ").includes(text);

function byUpdate(items: readonly Conversation[]): Conversation[] {
  return [...items].sort((a, b) => b.updated_at - a.updated_at);
}

function snippetOf(one: Conversation): Partial<Conversation> {
  return one.snippet === undefined ? {} : { snippet: one.snippet };
}
