/** The routes that the page uses, each as a function. */
import { type Asked, request, withQuery } from "./client";
import type {
  Accepted,
  Again,
  Agent,
  Conversation,
  Edit,
  Me,
  Message,
  ModelName,
  NewTurn,
  Page,
  StoredFile,
  Turn,
} from "./types";

export const me = () => request<Me>("GET", "/v1/me");
export const models = () => request<Page<ModelName>>("GET", "/v1/models");
export const openapi = () => request<{ paths: Record<string, unknown> }>("GET", "/openapi.json");

export const conversations = (query: { q?: string; cursor?: string | null; limit?: number }) =>
  request<Page<Conversation>>("GET", withQuery("/v1/conversations", query));
export const conversation = (id: string, asked?: Asked) =>
  request<Conversation>("GET", `/v1/conversations/${id}`, asked);
export const createConversation = (body: object) => request<Conversation>("POST", "/v1/conversations", { body });
export const changeConversation = (id: string, body: object) =>
  request<Conversation>("PATCH", `/v1/conversations/${id}`, { body });
export const deleteConversation = (id: string) => request<undefined>("DELETE", `/v1/conversations/${id}`);
export const restoreConversation = (id: string) => request<Conversation>("POST", `/v1/conversations/${id}/restore`);
export const messages = (
  id: string,
  query: { order: "asc" | "desc"; limit?: number; cursor?: string | null },
  asked?: Asked,
) => request<Page<Message>>("GET", withQuery(`/v1/conversations/${id}/messages`, query), asked);

/** Turns are asked in the background and followed by themselves, so that leaving the page does not stop them. */
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

export interface Upload {
  file: StoredFile;
  upload: { method: string; url: string; headers: Record<string, string>; expires_at: number };
}
export const promiseFile = (body: { name: string; size: number; mime_type: string; conversation_id?: string }) =>
  request<Upload>("POST", "/v1/files", { body });
export const completeFile = (id: string) => request<StoredFile>("POST", `/v1/files/${id}/complete`);
export const deleteFile = (id: string) => request<undefined>("DELETE", `/v1/files/${id}`);

export const agents = (cursor?: string | null) =>
  request<Page<Agent>>("GET", withQuery("/v1/agents", { limit: 100, cursor }));
