/** The routes of the API that the page uses, one function for each. */
import { type Again, type Decision, type Edit, type MonthlyUsage, type NewAgent, type NewInvite, type NewKey, type NewTurn, type NewWebhook, refusalOf, type RequestOptions, Turnkeep, type TurnListener, TurnReader, type UploadOptions, type WorkspacePatch } from "@turnkeep/client";

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

export const conversations = (query: { q?: string; cursor?: string | null; limit?: number }) => turnkeep.conversations.page(query);
export const conversation = (id: string, options?: RequestOptions) => turnkeep.conversations.get(id, options);
export const changeConversation = (id: string, body: object) => turnkeep.conversations.update(id, body);
export const deleteConversation = (id: string) => turnkeep.conversations.delete(id);
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
export const cancel = (id: string) => turnkeep.turns.cancel(id);
/** Read the events of a turn as they come, for as long as it takes. */
export const follow = (turnId: string, { onConnection = () => undefined, ...listener }: TurnListener & { onConnection?(isGood: boolean): void }) =>
  new TurnReader(turnId, turnkeep.turns.follow(turnId, { patienceMs: Number.POSITIVE_INFINITY, onConnection }), listener);

export const upload = (file: File, options: Pick<UploadOptions, "signal" | "onProgress">) => turnkeep.files.upload(file, { ...options, patienceMs: UPLOAD_PATIENCE_MS });
export const deleteFile = (id: string) => turnkeep.files.delete(id);

// --- settings and sources

export const usage = () => turnkeep.request("GET", "/v1/usage") as Promise<MonthlyUsage>;
export const agents = (cursor?: string | null) => turnkeep.request("GET", "/v1/agents", { query: { limit: 100, cursor: cursor ?? null } });
export const createAgent = (body: NewAgent) => turnkeep.request("POST", "/v1/agents", { body });
export const replaceAgent = (id: string, body: NewAgent) => turnkeep.request("PUT", "/v1/agents/{agent_id}", { params: { agent_id: id }, body });
export const rotateToolSecret = (id: string) => turnkeep.request("POST", "/v1/agents/{agent_id}/tool_secret", { params: { agent_id: id } });
export const deleteAgent = (id: string) => turnkeep.request("DELETE", "/v1/agents/{agent_id}", { params: { agent_id: id } });

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

const asCsv = (file: File) => new Blob([file], { type: "text/csv" });
export const tables = (cursor: string | null) => turnkeep.request("GET", "/v1/tables", { query: { cursor, limit: 100 } });
export const readTable = (id: string) => turnkeep.request("GET", "/v1/tables/{table_id}", { params: { table_id: id } });
export const importTable = (name: string, file: File) => turnkeep.request("POST", "/v1/tables", { query: { name }, body: asCsv(file) });
export const importRows = (id: string, file: File) => turnkeep.request("POST", "/v1/tables/{table_id}/rows", { params: { table_id: id }, body: asCsv(file) });
export const deleteTable = (id: string) => turnkeep.request("DELETE", "/v1/tables/{table_id}", { params: { table_id: id } });
export const rows = (id: string, query: { q?: string; cursor?: string | null; sort?: string }) =>
  turnkeep.request("GET", "/v1/tables/{table_id}/rows", { params: { table_id: id }, query: { limit: 50, ...query } });
/** Rows by number, from this one on. */
export const rowsFrom = (id: string, row: number, limit: number) => turnkeep.request("GET", "/v1/tables/{table_id}/rows", { params: { table_id: id }, query: { from_row: row, limit } });

export const readFile = (id: string) => turnkeep.files.get(id);
export const readText = (id: string) => turnkeep.files.text(id);
