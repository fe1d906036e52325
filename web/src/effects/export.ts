/** Export of a whole conversation: as a file of Markdown or JSON, or on paper. */
import type { Conversation, Message, Source } from "@turnkeep/client";
import { numberOf } from "../state/sources";
import * as routes from "../wire/routes";
import type { Threads } from "./threads";

const SPEAKERS: Record<Message["role"], string> = { user: "You", assistant: "Assistant", system: "Instructions" };

/** Let the browser download the conversation. */
export async function exportConversation(id: string, format: "markdown" | "json"): Promise<void> {
  const [conversation, all] = await Promise.all([routes.conversation(id), everyMessage(id)]);
  if (format === "json") download(fileName(conversation, "json"), asJson(conversation, all), "application/json");
  else download(fileName(conversation, "md"), asMarkdown(conversation, all), "text/markdown");
}

/** Print the conversation. The browser prints what is in the document, so earlier messages are loaded first. */
export async function printConversation(threads: Threads, id: string): Promise<void> {
  if (await threads.loadAll(id)) print();
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
  const who = `## ${SPEAKERS[message.role]}`;
  const files = message.attachments.map((file) => `- attached: ${file.name}`).join("\n");
  const sources = message.sources.map(sourceAsMarkdown).join("\n");
  return [who, files, partsAsMarkdown(message.content), sources && `Sources:\n\n${sources}`].filter(Boolean).join("\n\n");
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
        return `- *${part.name}*: ${part.status}`;
      case "file":
        return `- file: ${part.name}`;
      default:
        return part satisfies never;
    }
  });
  return pieces.join("\n\n");
}

function download(name: string, text: string, mimeType: string): void {
  const url = URL.createObjectURL(new Blob([text], { type: mimeType }));
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

function fileName(conversation: Conversation, extension: string): string {
  const base = (conversation.title ?? conversation.preview ?? "conversation").replace(/[^\p{L}\p{N}]+/gu, "-");
  return `${base.replace(/^-+|-+$/g, "").slice(0, 60) || "conversation"}.${extension}`;
}
