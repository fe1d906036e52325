/** The routes of the API that the page uses, one function for each. */
import { type Again, type ConversationQuery, type Decision, type Edit, type FeedbackItem, type Folder, type McpServer, type MonthlyUsage, type NewAgent, type NewFeedback, type NewInvite, type NewKey, type NewMcpConnection, type NewShare, type NewTurn, type NewWebhook, type Rating, refusalOf, type RequestOptions, Turnkeep, type TurnListener, TurnReader, type UploadOptions, type WorkspacePatch } from "@turnkeep/client";

import { fileContent } from "./addresses";
import { fetchAs } from "./credentials";

/** The server of this page, which knows the user by a cookie. The page itself says how long a request is repeated. */
const turnkeep = new Turnkeep({ baseUrl: "", patienceMs: 0, fetch: fetchAs });
/** An upload whose connection broke is tried again for this long. Then the user decides. */
const UPLOAD_PATIENCE_MS = 4_000;

/** The bytes at this path. */
export async function bytes(path: string): Promise<Blob> {
  const response = await turnkeep.send("GET", path, { headers: { accept: "*/*" }, redirect: "follow" });
  if (!response.ok) throw await refusalOf(response);
  return await response.blob();
}

export const me = () => turnkeep.me();
export const signinWays = () => turnkeep.request("GET", "/v1/signin");
export const signOut = () => turnkeep.request("POST", "/v1/signout");
export const acceptInvite = (token: string) => turnkeep.request("POST", "/v1/signin/invite", { body: { token } });
/** Open the link that the server prints. Its answer is a redirect with a cookie, which the browser keeps. */
export async function openSigninLink(token: string): Promise<void> {
  const response = await turnkeep.send("GET", `/signin?token=${encodeURIComponent(token)}`, { redirect: "manual" });
  if (response.type !== "opaqueredirect") throw await refusalOf(response);
}
export const models = () => turnkeep.request("GET", "/v1/models");
export const openapi = () => turnkeep.request("GET", "/openapi.json") as Promise<{ paths: Record<string, unknown> }>;

export const conversations = (query: ConversationQuery) => turnkeep.conversations.page(query);
export const folders = async () => {
  const found: Folder[] = [];
  for await (const folder of turnkeep.conversations.folders()) found.push(folder);
  return found;
};
export const renameFolder = (name: string, newName: string | null) => turnkeep.conversations.renameFolder(name, newName);
export const conversation = (id: string, options?: RequestOptions) => turnkeep.conversations.get(id, options);
export const changeConversation = (id: string, body: object) => turnkeep.conversations.update(id, body);
export const deleteConversation = (id: string) => turnkeep.conversations.delete(id);
export const deletedConversations = (cursor: string | null) => turnkeep.conversations.page({ deleted: true, cursor, limit: 50 });
export const eraseConversation = (id: string) => turnkeep.conversations.erase(id);
export const restoreConversation = (id: string) => turnkeep.conversations.restore(id);
export const messages = (id: string, query: { order: "asc" | "desc"; limit?: number; cursor?: string | null }, options?: RequestOptions) =>
  turnkeep.conversations.messagePage(id, query, options);

/** Turns run in the background and are followed with a second request, so that leaving the page does not stop them. */
export const ask = (body: NewTurn, idempotencyKey: string) => turnkeep.turns.start(body, { idempotencyKey });
export const regenerate = (conversationId: string, turnId: string, body: Again, idempotencyKey: string) => turnkeep.turns.regenerate(conversationId, turnId, body, { idempotencyKey });
export const edit = (conversationId: string, turnId: string, body: Edit, idempotencyKey: string) => turnkeep.turns.edit(conversationId, turnId, body, { idempotencyKey });
export const turn = (id: string) => turnkeep.turns.get(id);
/** The first decision of a call holds. The same one again gets the same answer. */
export const decide = (turnId: string, decisions: readonly Decision[]) => turnkeep.turns.decide(turnId, decisions);
export const steer = (turnId: string, message: string, idempotencyKey: string) => turnkeep.turns.steer(turnId, message, { idempotencyKey });
export const myFeedback = (conversationId: string, cursor: string | null) => turnkeep.request("GET", "/v1/conversations/{conversation_id}/feedback", { params: { conversation_id: conversationId }, query: { cursor } });
export const rate = (turnId: string, body: NewFeedback) => turnkeep.request("PUT", "/v1/turns/{turn_id}/feedback", { params: { turn_id: turnId }, body });
export const unrate = (turnId: string) => turnkeep.request("DELETE", "/v1/turns/{turn_id}/feedback", { params: { turn_id: turnId } });
export const feedback = (rating: Rating | null, cursor: string | null) => turnkeep.request("GET", "/v1/feedback", { query: { rating, cursor, limit: 50 } }) as Promise<{ data: FeedbackItem[]; next_cursor: string | null }>;
export const cancel = (id: string) => turnkeep.turns.cancel(id);
/** Read the events of a turn as they come, for as long as it takes. */
export const follow = (turnId: string, { onConnection = () => undefined, ...listener }: TurnListener & { onConnection?(isGood: boolean): void }) =>
  new TurnReader(turnId, turnkeep.turns.follow(turnId, { patienceMs: Number.POSITIVE_INFINITY, onConnection }), listener);

export const upload = (file: File, options: Pick<UploadOptions, "signal" | "onProgress">) => turnkeep.files.upload(file, { ...options, patienceMs: UPLOAD_PATIENCE_MS });
export const deleteFile = (id: string) => turnkeep.files.delete(id);

// --- settings and sources

export interface UsageFilter {
  readonly month?: string | null;
  readonly user?: string | null;
  readonly agent_id?: string | null;
  readonly model?: string | null;
}
export type UsageGroup = "user" | "agent" | "model" | "day" | "source";
export const usage = (only: UsageFilter = {}, group: UsageGroup | null = null) => turnkeep.request("GET", "/v1/usage", { query: { ...only, group_by: group } }) as Promise<MonthlyUsage>;
export const usageCsv = async (only: UsageFilter, group: UsageGroup): Promise<string> => {
  const given = Object.entries({ ...only, group_by: group, format: "csv" }).filter((one): one is [string, string] => !!one[1]);
  return await (await bytes(`/v1/usage?${new URLSearchParams(given).toString()}`)).text();
};
export const usageTurns = (only: UsageFilter & { readonly day?: string | null }, cursor: string | null) => turnkeep.request("GET", "/v1/usage/turns", { query: { ...only, cursor, limit: 20 } });
export const timeline = (turnId: string) => turnkeep.request("GET", "/v1/turns/{turn_id}/timeline", { params: { turn_id: turnId } });
export const span = (turnId: string, spanId: string) => turnkeep.request("GET", "/v1/turns/{turn_id}/timeline/{span_id}", { params: { turn_id: turnId, span_id: spanId } });
/** What one call of the model was sent. */
export const replay = (turnId: string, iteration: number) => turnkeep.request("GET", "/v1/turns/{turn_id}/replay", { params: { turn_id: turnId }, query: { iteration } });
export const agents = (cursor?: string | null) => turnkeep.request("GET", "/v1/agents", { query: { limit: 100, cursor: cursor ?? null } });
export const createAgent = (body: NewAgent) => turnkeep.request("POST", "/v1/agents", { body });
export const replaceAgent = (id: string, body: NewAgent) => turnkeep.request("PUT", "/v1/agents/{agent_id}", { params: { agent_id: id }, body });
export const sandboxImages = () => turnkeep.request("GET", "/v1/sandbox-images", { query: { limit: 100 } });
export const rotateToolSecret = (id: string) => turnkeep.request("POST", "/v1/agents/{agent_id}/tool_secret", { params: { agent_id: id } });
export const deleteAgent = (id: string) => turnkeep.request("DELETE", "/v1/agents/{agent_id}", { params: { agent_id: id } });

/** Ask an agent as the form describes it, saved or not. */
export const tryAgent = (body: { agent: NewAgent; agent_id: string | null; conversation_id: string | null; message: string }) => turnkeep.request("POST", "/v1/agents/try", { body });
export const nativeTools = (cursor: string | null) => turnkeep.request("GET", "/v1/tools", { query: { limit: 100, cursor } });
export const mcpTools = (server: McpServer, agentId: string | null) => turnkeep.request("POST", "/v1/mcp/tools", { body: { server, agent_id: agentId } });
export const mcpConnections = () => turnkeep.request("GET", "/v1/mcp/connections", { query: { limit: 100 } });
export const beginMcpConnection = (body: NewMcpConnection) => turnkeep.request("POST", "/v1/mcp/connections", { body });
export const deleteMcpConnection = (id: string) => turnkeep.request("DELETE", "/v1/mcp/connections/{connection_id}", { params: { connection_id: id } });

export const keys = () => turnkeep.request("GET", "/v1/keys");
export const createKey = (body: NewKey) => turnkeep.request("POST", "/v1/keys", { body });
export const revokeKey = (id: string) => turnkeep.request("DELETE", "/v1/keys/{key_id}", { params: { key_id: id } });

export const mySessions = () => turnkeep.request("GET", "/v1/me/sessions");
export const endMySession = (id: string) => turnkeep.request("DELETE", "/v1/me/sessions/{session_id}", { params: { session_id: id } });
export const endOtherSessions = () => turnkeep.request("DELETE", "/v1/me/sessions");
export const users = (q: string, cursor: string | null) => turnkeep.request("GET", "/v1/users", { query: { q, cursor, limit: 50 } });
export const changeUser = (id: string, body: { role?: "member" | "admin"; is_disabled?: boolean }) => turnkeep.request("PATCH", "/v1/users/{user}", { params: { user: id }, body });
export const userSessions = (id: string) => turnkeep.request("GET", "/v1/users/{user}/sessions", { params: { user: id } });
export const endUserSession = (id: string, sessionId: string) => turnkeep.request("DELETE", "/v1/users/{user}/sessions/{session_id}", { params: { user: id, session_id: sessionId } });
export const endUserSessions = (id: string) => turnkeep.request("DELETE", "/v1/users/{user}/sessions", { params: { user: id } });
export const invites = () => turnkeep.request("GET", "/v1/invites");
export const createInvite = (body: NewInvite) => turnkeep.request("POST", "/v1/invites", { body });
export const deleteInvite = (id: string) => turnkeep.request("DELETE", "/v1/invites/{invite_id}", { params: { invite_id: id } });
export const shares = (conversationId: string | null, cursor: string | null) => turnkeep.request("GET", "/v1/shares", { query: { conversation_id: conversationId, cursor, limit: 50 } });
export const createShare = (conversationId: string, body: NewShare) => turnkeep.request("POST", "/v1/conversations/{conversation_id}/shares", { params: { conversation_id: conversationId }, body });
export const revokeShare = (id: string) => turnkeep.request("DELETE", "/v1/shares/{share_id}", { params: { share_id: id } });
/** What the share link of this document shows. */
export const shared = (cursor: string | null) => turnkeep.request("GET", "/v1/shared", { query: { cursor, limit: 50 } });
export const webhooks = () => turnkeep.request("GET", "/v1/webhooks");
export const createWebhook = (body: Pick<NewWebhook, "url" | "events">) => turnkeep.request("POST", "/v1/webhooks", { body });
export const changeWebhook = (id: string, body: { is_enabled: boolean }) => turnkeep.request("PATCH", "/v1/webhooks/{webhook_id}", { params: { webhook_id: id }, body });
export const deleteWebhook = (id: string) => turnkeep.request("DELETE", "/v1/webhooks/{webhook_id}", { params: { webhook_id: id } });
export const deliveries = (id: string, cursor: string | null) => turnkeep.request("GET", "/v1/webhooks/{webhook_id}/deliveries", { params: { webhook_id: id }, query: { cursor, limit: 20 } });
export const redeliver = (id: string, deliveryId: string) =>
  turnkeep.request("POST", "/v1/webhooks/{webhook_id}/deliveries/{delivery_id}/redeliver", { params: { webhook_id: id, delivery_id: deliveryId } });

export const workspaces = () => turnkeep.request("GET", "/v1/workspaces");
export const changeWorkspace = (id: string, body: Partial<WorkspacePatch>) => turnkeep.request("PATCH", "/v1/workspaces/{workspace_id}", { params: { workspace_id: id }, body });

export const pages = (q: string, cursor: string | null) => turnkeep.request("GET", "/v1/pages", { query: { q, cursor, limit: 100 } });
export const readPage = (id: string) => turnkeep.request("GET", "/v1/pages/{page_id}", { params: { page_id: id } });
export const createPage = (body: { title: string; content: string }) => turnkeep.request("POST", "/v1/pages", { body });
export const replacePage = (id: string, body: { title: string; content: string }) => turnkeep.request("PUT", "/v1/pages/{page_id}", { params: { page_id: id }, body });
export const deletePage = (id: string) => turnkeep.request("DELETE", "/v1/pages/{page_id}", { params: { page_id: id } });

type ColumnType = "text" | "number" | "date" | "datetime" | "boolean";
type RowValues = Record<string, string | number | boolean | null>;
const asCsv = (file: File) => new Blob([file], { type: "text/csv" });
export const tables = (cursor: string | null) => turnkeep.request("GET", "/v1/tables", { query: { cursor, limit: 100 } });
export const readTable = (id: string) => turnkeep.request("GET", "/v1/tables/{table_id}", { params: { table_id: id } });
export const importTable = (name: string, file: File) => turnkeep.request("POST", "/v1/tables", { query: { name }, body: asCsv(file) });
export const importRows = (id: string, file: File) => turnkeep.request("POST", "/v1/tables/{table_id}/rows", { params: { table_id: id }, body: asCsv(file) });
export const changeTable = (id: string, body: { name: string; description: string; columns: { name: string; type: ColumnType; was?: string }[] }) => turnkeep.request("PATCH", "/v1/tables/{table_id}", { params: { table_id: id }, body });
export const addRow = (id: string, values: RowValues) => turnkeep.request("POST", "/v1/tables/{table_id}/rows", { params: { table_id: id }, body: { rows: [values] } });
export const replaceRow = (id: string, row: number, values: RowValues) => turnkeep.request("PUT", "/v1/tables/{table_id}/rows/{row}", { params: { table_id: id, row }, body: { values } });
export const deleteRow = (id: string, row: number) => turnkeep.request("DELETE", "/v1/tables/{table_id}/rows/{row}", { params: { table_id: id, row } });
/** Where the browser downloads all rows. */
export const csvAddress = (id: string) => `/v1/tables/${id}/rows?format=csv`;
export const deleteTable = (id: string) => turnkeep.request("DELETE", "/v1/tables/{table_id}", { params: { table_id: id } });
export const rows = (id: string, query: { q?: string; cursor?: string | null; sort?: string; limit?: number }) =>
  turnkeep.request("GET", "/v1/tables/{table_id}/rows", { params: { table_id: id }, query: { limit: 50, ...query } });
/** Rows by number, from this one on. */
export const rowsFrom = (id: string, row: number, limit: number) => turnkeep.request("GET", "/v1/tables/{table_id}/rows", { params: { table_id: id }, query: { from_row: row, limit } });

/** The first bytes of a file as text. */
export async function readBeginning(id: string, bytes: number): Promise<string> {
  const response = await turnkeep.send("GET", fileContent(id), { headers: { accept: "*/*", range: `bytes=0-${bytes - 1}` }, redirect: "follow" });
  if (!response.ok) throw await refusalOf(response);
  return await response.text();
}
export const conversationFiles = (id: string, cursor: string | null) => turnkeep.request("GET", "/v1/conversations/{conversation_id}/files", { params: { conversation_id: id }, query: { cursor, limit: 100 } });
export const savedFiles = (cursor: string | null) => turnkeep.request("GET", "/v1/files", { query: { cursor, limit: 50 } });
/** Copy a file into the workspace's Files. */
export const saveFile = (id: string) => turnkeep.request("POST", "/v1/files/{file_id}/save", { params: { file_id: id } });
export const readFile = (id: string) => turnkeep.files.get(id);
export const readText = (id: string) => turnkeep.files.text(id);
