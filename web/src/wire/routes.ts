/** The routes of the API that the page uses, one function for each. */
import { problemOf, type RequestOptions, request, send, withQuery } from "./client";
import type {
  Accepted,
  Again,
  Agent,
  Conversation,
  Edit,
  FileText,
  Invite,
  Key,
  KnowledgePage,
  Me,
  Message,
  ModelName,
  MonthlyUsage,
  NewAgent,
  NewInvite,
  NewKey,
  NewTurn,
  NewWebhook,
  ListPage,
  PageItem,
  PageSession,
  SignedOut,
  SigninWays,
  StoredFile,
  Table,
  TableRow,
  ToolSecret,
  Turn,
  User,
  Webhook,
  WebhookDelivery,
  Workspace,
  WorkspacePatch,
} from "./types";

export const me = () => request<Me>("GET", "/v1/me");
export const signinWays = () => request<SigninWays>("GET", "/v1/signin");
export const signOut = () => request<SignedOut>("POST", "/v1/signout");
export const acceptInvite = (token: string) => request<undefined>("POST", "/v1/signin/invite", { body: { token } });
/** Open the link that the server prints. Its answer is a redirect with a cookie, which the browser keeps. */
export async function openSigninLink(token: string): Promise<void> {
  const response = await send("GET", withQuery("/signin", { token }), { redirect: "manual" });
  if (response.type !== "opaqueredirect") throw await problemOf(response);
}
export const models = () => request<ListPage<ModelName>>("GET", "/v1/models");
export const openapi = () => request<{ paths: Record<string, unknown> }>("GET", "/openapi.json");

export const conversations = (query: { q?: string; cursor?: string | null; limit?: number }) =>
  request<ListPage<Conversation>>("GET", withQuery("/v1/conversations", query));
export const conversation = (id: string, options?: RequestOptions) =>
  request<Conversation>("GET", `/v1/conversations/${id}`, options);
export const changeConversation = (id: string, body: object) =>
  request<Conversation>("PATCH", `/v1/conversations/${id}`, { body });
export const deleteConversation = (id: string) => request<undefined>("DELETE", `/v1/conversations/${id}`);
export const restoreConversation = (id: string) => request<Conversation>("POST", `/v1/conversations/${id}/restore`);
export const messages = (
  id: string,
  query: { order: "asc" | "desc"; limit?: number; cursor?: string | null },
  options?: RequestOptions,
) => request<ListPage<Message>>("GET", withQuery(`/v1/conversations/${id}/messages`, query), options);

/** Turns run in the background and are followed with a second request, so that leaving the page does not stop them. */
export const ask = (body: NewTurn, idempotencyKey: string) =>
  request<Accepted>("POST", "/v1/turns", {
    body: { ...body, background: true },
    headers: { "idempotency-key": idempotencyKey },
  });
export const regenerate = (conversationId: string, turnId: string, body: Again, idempotencyKey: string) =>
  request<Accepted>("POST", `/v1/conversations/${conversationId}/turns/${turnId}/regenerate`, {
    body: { ...body, background: true },
    headers: { "idempotency-key": idempotencyKey },
  });
export const edit = (conversationId: string, turnId: string, body: Edit, idempotencyKey: string) =>
  request<Accepted>("POST", `/v1/conversations/${conversationId}/turns/${turnId}/edit`, {
    body: { ...body, background: true },
    headers: { "idempotency-key": idempotencyKey },
  });
export const turn = (id: string) => request<Turn>("GET", `/v1/turns/${id}`);
export const cancel = (id: string) => request<Turn>("POST", `/v1/turns/${id}/cancel`);

export interface PromisedFile {
  file: StoredFile;
  upload: { method: string; url: string; headers: Record<string, string>; expires_at: number };
}
export const announceFile = (body: { name: string; size: number; mime_type: string; through_server?: boolean }) =>
  request<PromisedFile>("POST", "/v1/files", { body });
export const completeFile = (id: string) => request<StoredFile>("POST", `/v1/files/${id}/complete`);
export const deleteFile = (id: string) => request<undefined>("DELETE", `/v1/files/${id}`);

// --- settings and sources

export const usage = () => request<MonthlyUsage>("GET", "/v1/usage");
export const agents = (cursor?: string | null) =>
  request<ListPage<Agent>>("GET", withQuery("/v1/agents", { limit: 100, cursor }));
export const createAgent = (body: NewAgent) => request<Agent>("POST", "/v1/agents", { body });
export const replaceAgent = (id: string, body: NewAgent) => request<Agent>("PUT", `/v1/agents/${id}`, { body });
export const rotateToolSecret = (id: string) => request<ToolSecret>("POST", `/v1/agents/${id}/tool_secret`);
export const deleteAgent = (id: string) => request<undefined>("DELETE", `/v1/agents/${id}`);

export const keys = () => request<ListPage<Key>>("GET", "/v1/keys");
export const createKey = (body: NewKey) => request<Key>("POST", "/v1/keys", { body });
export const revokeKey = (id: string) => request<undefined>("DELETE", `/v1/keys/${id}`);

export const mySessions = () => request<ListPage<PageSession>>("GET", "/v1/me/sessions");
export const endMySession = (id: string) => request<undefined>("DELETE", `/v1/me/sessions/${id}`);
export const endOtherSessions = () => request<undefined>("DELETE", "/v1/me/sessions");
export const users = (q: string, cursor: string | null) => request<ListPage<User>>("GET", withQuery("/v1/users", { q, cursor, limit: 50 }));
export const changeUser = (id: string, body: { role?: "member" | "admin"; is_disabled?: boolean }) => request<User>("PATCH", `/v1/users/${id}`, { body });
export const userSessions = (id: string) => request<ListPage<PageSession>>("GET", `/v1/users/${id}/sessions`);
export const endUserSession = (id: string, sessionId: string) => request<undefined>("DELETE", `/v1/users/${id}/sessions/${sessionId}`);
export const endUserSessions = (id: string) => request<undefined>("DELETE", `/v1/users/${id}/sessions`);
export const invites = () => request<ListPage<Invite>>("GET", "/v1/invites");
export const createInvite = (body: NewInvite) => request<Invite>("POST", "/v1/invites", { body });
export const deleteInvite = (id: string) => request<undefined>("DELETE", `/v1/invites/${id}`);
export const webhooks = () => request<ListPage<Webhook>>("GET", "/v1/webhooks");
export const createWebhook = (body: Pick<NewWebhook, "url" | "events">) => request<Webhook>("POST", "/v1/webhooks", { body });
export const changeWebhook = (id: string, body: { is_enabled: boolean }) => request<Webhook>("PATCH", `/v1/webhooks/${id}`, { body });
export const deleteWebhook = (id: string) => request<undefined>("DELETE", `/v1/webhooks/${id}`);
export const deliveries = (id: string, cursor: string | null) =>
  request<ListPage<WebhookDelivery>>("GET", withQuery(`/v1/webhooks/${id}/deliveries`, { cursor, limit: 20 }));
export const redeliver = (id: string, deliveryId: string) =>
  request<WebhookDelivery>("POST", `/v1/webhooks/${id}/deliveries/${deliveryId}/redeliver`);

export const workspaces = () => request<ListPage<Workspace>>("GET", "/v1/workspaces");
export const changeWorkspace = (id: string, body: Partial<WorkspacePatch>) =>
  request<Workspace>("PATCH", `/v1/workspaces/${id}`, { body });

export const pages = (q: string, cursor: string | null) =>
  request<ListPage<PageItem>>("GET", withQuery("/v1/pages", { q, cursor, limit: 100 }));
export const readPage = (id: string) => request<KnowledgePage>("GET", `/v1/pages/${id}`);
export const createPage = (body: { title: string; content: string }) => request<KnowledgePage>("POST", "/v1/pages", { body });
export const replacePage = (id: string, body: { title: string; content: string }) => request<KnowledgePage>("PUT", `/v1/pages/${id}`, { body });
export const deletePage = (id: string) => request<undefined>("DELETE", `/v1/pages/${id}`);

const asCsv = (file: File) => new Blob([file], { type: "text/csv" });
export const tables = (cursor: string | null) => request<ListPage<Table>>("GET", withQuery("/v1/tables", { cursor, limit: 100 }));
export const readTable = (id: string) => request<Table>("GET", `/v1/tables/${id}`);
export const importTable = (name: string, file: File) => request<Table>("POST", withQuery("/v1/tables", { name }), { body: asCsv(file) });
export const importRows = (id: string, file: File) => request<{ rows: number }>("POST", `/v1/tables/${id}/rows`, { body: asCsv(file) });
export const deleteTable = (id: string) => request<undefined>("DELETE", `/v1/tables/${id}`);
export const rows = (id: string, query: { q?: string; cursor?: string | null; sort?: string }) =>
  request<ListPage<TableRow>>("GET", withQuery(`/v1/tables/${id}/rows`, { limit: 50, ...query }));
/** Rows by number, from this one on. */
export const rowsFrom = (id: string, row: number, limit: number) =>
  request<ListPage<TableRow>>("GET", withQuery(`/v1/tables/${id}/rows`, { from_row: row, limit }));

export const readFile = (id: string) => request<StoredFile>("GET", `/v1/files/${id}`);
export const readText = (id: string) => request<FileText>("GET", `/v1/files/${id}/text`);
