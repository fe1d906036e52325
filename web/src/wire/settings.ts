/** The routes of the settings area. */
import { request, withQuery } from "./client";
import type { Agent, FileText, Key, KnowledgePage, MonthlyUsage, NewAgent, NewKey, Page, PageItem, StoredFile, Table, TableRow, Workspace, WorkspacePatch } from "./types";

export const usage = () => request<MonthlyUsage>("GET", "/v1/usage");
export const agents = (cursor?: string | null) =>
  request<Page<Agent>>("GET", withQuery("/v1/agents", { limit: 100, cursor }));
export const createAgent = (body: NewAgent) => request<Agent>("POST", "/v1/agents", { body });
export const replaceAgent = (id: string, body: NewAgent) => request<Agent>("PUT", `/v1/agents/${id}`, { body });
export const deleteAgent = (id: string) => request<undefined>("DELETE", `/v1/agents/${id}`);

export const keys = () => request<Page<Key>>("GET", "/v1/keys");
export const createKey = (body: NewKey) => request<Key>("POST", "/v1/keys", { body });
export const revokeKey = (id: string) => request<undefined>("DELETE", `/v1/keys/${id}`);

export const workspaces = () => request<Page<Workspace>>("GET", "/v1/workspaces");
export const changeWorkspace = (id: string, body: Partial<WorkspacePatch>) =>
  request<Workspace>("PATCH", `/v1/workspaces/${id}`, { body });

export const pages = (q: string, cursor: string | null) =>
  request<Page<PageItem>>("GET", withQuery("/v1/pages", { q, cursor, limit: 100 }));
export const readPage = (id: string) => request<KnowledgePage>("GET", `/v1/pages/${id}`);
export const createPage = (body: { title: string; content: string }) => request<KnowledgePage>("POST", "/v1/pages", { body });
export const replacePage = (id: string, body: { title: string; content: string }) => request<KnowledgePage>("PUT", `/v1/pages/${id}`, { body });
export const deletePage = (id: string) => request<undefined>("DELETE", `/v1/pages/${id}`);

const asCsv = (file: File) => new Blob([file], { type: "text/csv" });
export const tables = (cursor: string | null) => request<Page<Table>>("GET", withQuery("/v1/tables", { cursor, limit: 100 }));
export const readTable = (id: string) => request<Table>("GET", `/v1/tables/${id}`);
export const importTable = (name: string, file: File) => request<Table>("POST", withQuery("/v1/tables", { name }), { body: asCsv(file) });
export const importRows = (id: string, file: File) => request<{ rows: number }>("POST", `/v1/tables/${id}/rows`, { body: asCsv(file) });
export const deleteTable = (id: string) => request<undefined>("DELETE", `/v1/tables/${id}`);
export const rows = (id: string, query: { q?: string; cursor?: string | null; sort?: string }) =>
  request<Page<TableRow>>("GET", withQuery(`/v1/tables/${id}/rows`, { limit: 50, ...query }));
/** Rows by their number, from this one on. */
export const rowsFrom = (id: string, row: number, limit: number) =>
  request<Page<TableRow>>("GET", withQuery(`/v1/tables/${id}/rows`, { from_row: row, limit }));

export const readFile = (id: string) => request<StoredFile>("GET", `/v1/files/${id}`);
export const readText = (id: string) => request<FileText>("GET", `/v1/files/${id}/text`);
