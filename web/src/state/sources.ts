/** Sources of an answer: their numbers, and where they lead. */
import type { Source } from "@turnkeep/client";
import { isId, type Passage, type KnowledgeItem, type Route } from "./route";

export type Target =
  /** A route of this page. */
  | { readonly kind: "route"; readonly route: Route }
  /** A URL of another site. It is not checked yet. */
  | { readonly kind: "web"; readonly url: string };

/** The number of a source, as in `[2]`. Sources of old answers have none: their position counts. */
export const numberOf = (source: Source, at: number): number => source.number ?? at + 1;

/** The source with this number. */
export const sourceOf = (sources: readonly Source[], number: number): Source | undefined =>
  sources.find((source, at) => numberOf(source, at) === number);

/** Where a source leads, for a reader of this conversation; null if nowhere. Invalid ids lead nowhere. */
export function targetOf(source: Source, conversationId: string): Target | null {
  if (isId("conv", source.conversation_id)) {
    // If only the title matched, no message is cited.
    const passage = source.snippet === source.title ? undefined : passageOf(source);
    return { kind: "route", route: { page: "chat", conversationId: source.conversation_id, ...(passage ? { passage } : {}) } };
  }
  const item = itemOf(source);
  if (item && isId("conv", conversationId)) return { kind: "route", route: { page: "chat", conversationId, item } };
  if (item && (item.kind === "page" || item.kind === "table")) return { kind: "route", route: { page: "settings", section: item.kind === "page" ? "pages" : "tables", item } };
  return source.url ? { kind: "web", url: source.url } : null;
}

/** The snippet as plain text, without Markdown syntax. Rows of tables are not Markdown. */
export function plainSnippet(source: Source): string {
  if (source.table_id) return source.snippet;
  const plain = source.snippet
    .replaceAll(/!?\[([^\]]*)\]\([^)\s]*\)/g, "$1")
    .replaceAll(/(^|\s)#{2,6}\s+/g, "$1")
    .replace(/^#\s+/, "")
    .replaceAll(/(\*\*|__|`+)(?=\S)(.+?)\1/g, "$2");
  // Bars separate cells only if the snippet contains the begin of a table.
  return TABLE.test(plain) ? plain.replaceAll(/\s*\|(?:[\s|]|:?-{3,}:?)*/g, " · ").replaceAll(/^ · | · $/g, "") : plain;
}

const TABLE = /\|\s*:?-{3,}:?\s*\|/;

function itemOf(source: Source): KnowledgeItem | null {
  const passage = passageOf(source);
  if (isId("page", source.page_id)) return { kind: "page", id: source.page_id, ...(passage ? { passage } : {}) };
  if (isId("table", source.table_id)) return { kind: "table", id: source.table_id, ...(isRow(source.row) ? { row: source.row } : {}) };
  if (isId("file", source.file_id)) return { kind: "file", id: source.file_id, ...(passage ? { passage } : {}) };
  return null;
}

const isRow = (row: number | null | undefined): row is number => Number.isSafeInteger(row) && (row ?? 0) > 0;

function passageOf(source: Source): Passage | undefined {
  const { snippet: quote, place: part } = source;
  return quote || part ? { ...(quote ? { quote } : {}), ...(part ? { part } : {}) } : undefined;
}
