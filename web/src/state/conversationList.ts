/** The list of conversations: its loaded part, a search, and changes that the server has not confirmed yet. */
import type { Conversation, Folder, ListPage, Me, OutgoingMessage } from "@turnkeep/client";
import type { Passage } from "./route";

export interface ConversationList {
  readonly query: string;
  readonly status: "loading" | "ready" | "failed";
  /** What a search has found; without a search those that are neither pinned nor in a folder. */
  readonly items: readonly Conversation[];
  readonly cursor: string | null;
  readonly isLoadingMore: boolean;
  readonly pinned: readonly Conversation[];
  readonly folders: readonly Folder[];
  /** What is loaded of the folders that were opened, and where the rest of each begins. */
  readonly filed: readonly Conversation[];
  readonly folderCursors: Readonly<Record<string, string | null>>;
  /** The conversation for which a folder is being chosen. */
  readonly moving: string | null;
  /** The conversation that was just deleted here and can be restored with one click. */
  readonly removed: Conversation | null;
}

export type ConversationListAction =
  | { type: "conversations/searched"; query: string }
  | { type: "conversations/loaded"; query: string; page: ListPage<Conversation> }
  /** `known` are the conversations that were listed when the request was sent. */
  | { type: "conversations/refreshed"; query: string; page: ListPage<Conversation>; known: ReadonlySet<string> }
  | { type: "conversations/pinned"; pinned: readonly Conversation[] }
  | { type: "conversations/folders"; folders: readonly Folder[] }
  /** The first page of a folder, or a further one. */
  | { type: "conversations/filed"; folder: string; page: ListPage<Conversation>; isMore: boolean }
  | { type: "conversations/moving"; id: string | null }
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
  pinned: [],
  folders: [],
  filed: [],
  folderCursors: {},
  moving: null,
  removed: null,
};

/** Every conversation that the list knows. One that is pinned and in a folder is there twice. */
export const allListed = (list: ConversationList): Conversation[] => [...list.pinned, ...list.filed, ...list.items];

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
    case "conversations/pinned":
      return { ...list, pinned: action.pinned };
    case "conversations/folders":
      return { ...list, folders: action.folders };
    case "conversations/filed": {
      const fresh = new Set(action.page.data.map((one) => one.id));
      const others = list.filed.filter((one) => !fresh.has(one.id) && (action.isMore || one.folder !== action.folder));
      return { ...list, filed: byUpdate([...others, ...action.page.data]), folderCursors: { ...list.folderCursors, [action.folder]: action.page.next_cursor } };
    }
    case "conversations/moving":
      return { ...list, moving: action.id };
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
    case "conversations/changed":
      return withChanged(list, action.conversation);
    case "conversations/waiting": {
      const { id, turn_id: turnId, waiting_for: waiting } = action;
      const isChanged = (one: Conversation) => one.id === id && one.running_turn?.id === turnId && (one.running_turn.waiting_for ?? null) !== waiting;
      const running = { id: turnId, events_url: `/v1/turns/${turnId}/events`, ...(waiting ? { waiting_for: waiting } : {}) };
      return eachListed(list, isChanged, (one) => ({ ...one, running_turn: running }));
    }
    case "conversations/ended":
      return eachListed(list, (one) => one.id === action.id && one.running_turn?.id === action.turn_id, (one) => ({ ...one, running_turn: null }));
    case "conversations/renamed":
      return eachListed(list, (one) => one.id === action.id, (one) => ({ ...one, title: action.title }));
    case "conversations/removed":
      return { ...without(list, action.id), removed: allListed(list).find((one) => one.id === action.id) ?? list.removed };
    case "conversations/restored":
      return { ...placed(without(list, action.conversation.id), action.conversation), removed: list.removed?.id === action.conversation.id ? null : list.removed };
    case "conversations/forgot-removed":
      return { ...list, removed: null };
    default:
      return action satisfies never;
  }
}

/** The list after `change` of every conversation that `isMeant`. It is the same one if there is none. */
function eachListed(list: ConversationList, isMeant: (one: Conversation) => boolean, change: (one: Conversation) => Conversation): ConversationList {
  if (!allListed(list).some(isMeant)) return list;
  const changed = (all: readonly Conversation[]) => all.map((one) => (isMeant(one) ? change(one) : one));
  return { ...list, items: changed(list.items), pinned: changed(list.pinned), filed: changed(list.filed) };
}

function without(list: ConversationList, id: string): ConversationList {
  const others = (all: readonly Conversation[]) => all.filter((one) => one.id !== id);
  return { ...list, items: others(list.items), pinned: others(list.pinned), filed: others(list.filed) };
}

/** The list with a conversation that it does not have, in each of the groups to which it belongs. */
function placed(list: ConversationList, one: Conversation): ConversationList {
  const isFree = !one.is_pinned && !one.folder;
  return {
    ...list,
    items: isFree && !list.query ? byUpdate([...list.items, one]) : list.items,
    pinned: one.is_pinned ? byUpdate([...list.pinned, one]) : list.pinned,
    filed: one.folder ? byUpdate([...list.filed, one]) : list.filed,
    folders: one.folder ? withFolder(list.folders, one.folder) : list.folders,
  };
}

function withFolder(folders: readonly Folder[], name: string): readonly Folder[] {
  if (folders.some((folder) => folder.name === name)) return folders;
  return [...folders, { name, conversations: 1 }].sort((a, b) => (a.name < b.name ? -1 : 1));
}

/** The list with the newest state of a conversation, in the groups to which it belongs now. */
function withChanged(list: ConversationList, conversation: Conversation): ConversationList {
  const known = list.items.find((one) => one.id === conversation.id);
  const others = without(list, conversation.id);
  // The results of a search stay in their order.
  if (list.query) {
    const items = list.items.map((one) => (one.id === conversation.id ? { ...conversation, ...snippetOf(one) } : one));
    return { ...placed(others, conversation), items };
  }
  // A conversation that is older than the loaded ones will be loaded later.
  const last = list.items.at(-1);
  const isInside = known !== undefined || list.cursor === null || last === undefined || conversation.updated_at >= last.updated_at;
  const isFree = !conversation.is_pinned && !conversation.folder;
  if (isFree && (list.status !== "ready" || !isInside)) return others;
  return placed(others, conversation);
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
