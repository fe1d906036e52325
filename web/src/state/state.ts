/** The state of the page, and how actions change it. Pure: no I/O, no clock. */
import { type Agent, type Feedback, type FileRef, type Me, type ModelName, newThread, reduceThread, type Thread, type ThreadAction } from "@turnkeep/client";
import { type ConversationList, type ConversationListAction, newConversationList, reduceConversationList } from "./conversationList";
import type { Route } from "./route";

/** The thread of a conversation that does not exist yet. */
export const NEW = "new";

export interface Notice {
  readonly id: number;
  readonly text: string;
  readonly kind: "info" | "error";
}

/** A file that is being uploaded for a message. */
export interface FileUpload {
  readonly key: string;
  readonly name: string;
  readonly size: number;
  readonly mime_type: string;
  /** A local URL of the file, for pictures. */
  readonly preview: string | null;
  /** From 0 to 1. */
  readonly progress: number;
  readonly stored: FileRef | null;
  readonly error: string | null;
}

export interface State {
  /** `ended`: the user was signed in, and the page keeps what they typed until they are signed in again. */
  readonly session: "starting" | "signed_in" | "signed_out" | "ended" | "unreachable";
  readonly me: Me | null;
  readonly route: Route;
  readonly connection: "good" | "reconnecting" | "offline";
  readonly conversations: ConversationList;
  readonly threads: Readonly<Record<string, Thread>>;
  readonly uploads: Readonly<Record<string, readonly FileUpload[]>>;
  readonly models: readonly ModelName[];
  readonly agents: readonly Agent[];
  /** The paths of the OpenAPI document: the routes that this server has. */
  readonly paths: ReadonlySet<string>;
  readonly notices: readonly Notice[];
  /** The user's ratings by turn; null for one that was taken back. */
  readonly feedback: Readonly<Record<string, Feedback | null>>;
}

export type Action =
  | ConversationListAction
  | ThreadAction
  | { type: "session"; session: State["session"]; me?: Me }
  | { type: "route"; route: Route }
  | { type: "connection"; connection: State["connection"] }
  | { type: "models"; models: readonly ModelName[] }
  | { type: "agents"; agents: readonly Agent[] }
  | { type: "paths"; paths: ReadonlySet<string> }
  | { type: "notice"; notice: Notice }
  | { type: "notice/gone"; id: number }
  | { type: "feedback"; feedback: State["feedback"] }
  | { type: "upload/added"; threadId: string; upload: FileUpload }
  | { type: "upload/changed"; key: string; changes: Partial<FileUpload> }
  | { type: "upload/removed"; key: string }
  | { type: "upload/cleared"; threadId: string }
  | { type: "upload/moved"; from: string; to: string }
  /** The new conversation has an id. */
  | { type: "thread/created"; id: string };

export function newState(route: Route): State {
  return {
    session: "starting",
    me: null,
    route,
    connection: "good",
    conversations: newConversationList,
    threads: {},
    uploads: {},
    models: [],
    agents: [],
    paths: new Set(),
    notices: [],
    feedback: {},
  };
}

export function reduce(state: State, action: Action): State {
  switch (action.type) {
    case "session":
      return { ...state, session: action.session, me: action.me ?? state.me };
    case "route":
      return { ...state, route: action.route };
    case "connection":
      return state.connection === action.connection ? state : { ...state, connection: action.connection };
    case "models":
      return { ...state, models: action.models };
    case "agents":
      return { ...state, agents: action.agents };
    case "paths":
      return { ...state, paths: action.paths };
    case "notice":
      return { ...state, notices: withNotice(state.notices, action.notice) };
    case "notice/gone":
      return { ...state, notices: state.notices.filter((one) => one.id !== action.id) };
    case "feedback":
      return { ...state, feedback: { ...state.feedback, ...action.feedback } };
    case "upload/added":
      return { ...state, uploads: { ...state.uploads, [action.threadId]: [...(state.uploads[action.threadId] ?? []), action.upload] } };
    case "upload/changed":
      return { ...state, uploads: eachUpload(state, (one) => (one.key === action.key ? [{ ...one, ...action.changes }] : [one])) };
    case "upload/removed":
      return { ...state, uploads: eachUpload(state, (one) => (one.key === action.key ? [] : [one])) };
    case "upload/cleared":
      return { ...state, uploads: { ...state.uploads, [action.threadId]: [] } };
    case "upload/moved": {
      const moved = [...(state.uploads[action.to] ?? []), ...(state.uploads[action.from] ?? [])];
      return { ...state, uploads: { ...state.uploads, [action.from]: [], [action.to]: moved } };
    }
    case "thread/created": {
      const { [NEW]: begun, ...others } = state.threads;
      if (!begun) return state;
      return { ...state, threads: { ...others, [action.id]: { ...begun, id: action.id } } };
    }
    default:
      break;
  }
  if (isListAction(action)) return { ...state, conversations: reduceConversationList(state.conversations, action) };
  const thread = state.threads[action.id] ?? newThread(action.id);
  const changed = reduceThread(thread, action);
  return changed === state.threads[action.id] ? state : { ...state, threads: { ...state.threads, [action.id]: changed } };
}

const MAX_NOTICES = 3;

/** The same text is shown once. Errors are kept until they are read; of the others, the newest are shown. */
function withNotice(known: readonly Notice[], notice: Notice): Notice[] {
  const all = [...known.filter((one) => one.text !== notice.text), notice];
  return all.filter((one, at) => one.kind === "error" || at >= all.length - MAX_NOTICES);
}

function eachUpload(state: State, change: (one: FileUpload) => FileUpload[]): State["uploads"] {
  return Object.fromEntries(Object.entries(state.uploads).map(([id, all]) => [id, all.flatMap(change)]));
}

function isListAction(action: ConversationListAction | ThreadAction): action is ConversationListAction {
  return action.type.startsWith("conversations/");
}
