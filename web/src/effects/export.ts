/** Export of a whole conversation: as a file of Markdown or JSON, or on paper, which the browser can also save as PDF. And of a table. */
import type { Conversation, Message, Source, Table, TableRow } from "@turnkeep/client";
import { numberOf } from "../state/sources";
import * as routes from "../wire/routes";
import { words } from "../words";
import type { Threads } from "./threads";

/** Let the browser download the conversation. */
export async function exportConversation(id: string, format: "markdown" | "json"): Promise<void> {
  const [conversation, all] = await Promise.all([routes.conversation(id), everyMessage(id)]);
  if (format === "json") saveText(fileName(conversation, "json"), asJson(conversation, all), "application/json");
  else saveText(fileName(conversation, "md"), asMarkdown(conversation, all), "text/markdown");
}

/** Print the conversation. The browser prints what is in the document, so earlier messages are loaded first. */
export async function printConversation(threads: Threads, id: string): Promise<void> {
  if (await threads.loadAll(id)) print();
}

/** Let the browser download all rows of a table as JSON. */
export async function exportTable(table: Table): Promise<void> {
  const rows: TableRow[] = [];
  let cursor: string | null = null;
  do {
    const page: { data: TableRow[]; next_cursor: string | null } = await routes.rows(table.id, { limit: 100, cursor });
    rows.push(...page.data);
    cursor = page.next_cursor;
  } while (cursor !== null);
  const { name, description, columns } = table;
  const text = JSON.stringify({ name, description, columns, rows: rows.map((one) => one.values) }, null, 2);
  saveText(`${nameOfFile(name)}.json`, `${text}\n`, "application/json");
}

async function everyMessage(id: string): Promise<Message[]> {
  const all: Message[] = [];
  let cursor: string | null = null;
  do {
    const page: { data: Message[]; next_cursor: string | null } = await routes.messages(id, { order: "asc", limit: 100, cursor });
    all.push(...page.data);
    cursor = page.next_cursor;
  } while (cursor !== null);
  return all;
}

function asJson(conversation: Conversation, all: readonly Message[]): string {
  return `${JSON.stringify({ conversation, messages: all }, null, 2)}\n`;
}

function asMarkdown(conversation: Conversation, all: readonly Message[]): string {
  const title = `# ${conversation.title ?? conversation.preview ?? conversation.id}`;
  return `${[title, ...all.map(messageAsMarkdown)].join("\n\n")}\n`;
}

export function messageAsMarkdown(message: Message): string {
  const who = `## ${words.exported.roles[message.role]}`;
  const files = message.attachments.map((file) => `- ${words.exported.attached(file.name)}`).join("\n");
  const sources = message.sources.map(sourceAsMarkdown).join("\n");
  return [who, files, partsAsMarkdown(message.content), sources && `${words.exported.sources}\n\n${sources}`, endOf(message)].filter(Boolean).join("\n\n");
}

/** What the page says below an answer that failed or was stopped. */
function endOf(message: Message): string {
  if (message.role !== "assistant") return "";
  return message.status === "cancelled" ? `*${words.shared.stopped}*` : message.status === "failed" ? `*${words.thread.failed}*` : "";
}

function sourceAsMarkdown(source: Source, at: number): string {
  const title = source.url ? `[${source.title}](${source.url})` : source.title;
  return `${numberOf(source, at)}. ${title}${source.place ? `, ${source.place}` : ""}`;
}

function partsAsMarkdown(parts: Message["content"]): string {
  const pieces = parts.map((part) => {
    switch (part.type) {
      case "text":
        return part.text;
      case "reasoning":
        return part.text.split("\n").map((line) => `> ${line}`).join("\n");
      case "step":
        return `- *${part.name}*: ${words.thread.step[part.status]}`;
      case "file":
        return `- ${words.exported.file(part.name)}`;
      default:
        return part satisfies never;
    }
  });
  return pieces.join("\n\n");
}

/** Let the browser save a text as a file. */
export function saveText(name: string, text: string, mimeType: string): void {
  // Spreadsheets take UTF-8 for what it is only if the file begins with this mark.
  const mark = mimeType === "text/csv" ? "\ufeff" : "";
  const url = URL.createObjectURL(new Blob([mark, text], { type: mimeType }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function fileName(conversation: Conversation, extension: string): string {
  return `${nameOfFile(conversation.title ?? conversation.preview ?? "") || words.exported.fileName}.${extension}`;
}

const nameOfFile = (text: string): string => text.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60);
