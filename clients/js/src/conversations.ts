/** Conversations and their messages. */
import { type RequestOptions, type Transport, withQuery } from "./transport.js";
import type { Conversation, ConversationPatch, ConversationQuery, Folder, ListPage, Message, MessageQuery, NewConversation } from "./wire/types.js";

export class Conversations {
  #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** All of them, newest change first. Pages are fetched as they are read. */
  list(query: ConversationQuery = {}): AsyncGenerator<Conversation, void, undefined> {
    return allItems((cursor) => this.page({ ...query, ...cursor }));
  }

  /** One page of them. With `q`, those whose titles or messages have these words. */
  page(query: ConversationQuery = {}, options?: RequestOptions): Promise<ListPage<Conversation>> {
    return this.#transport.request("GET", withQuery("/v1/conversations", query), options);
  }

  /** Create one. With `external_id`, the conversation of this id is returned if there is one. */
  create(body: NewConversation = {}): Promise<Conversation> {
    return this.#transport.request("POST", "/v1/conversations", { body, isSafe: typeof body.external_id === "string" });
  }

  get(id: string, options?: RequestOptions): Promise<Conversation> {
    return this.#transport.request("GET", conversationPath(id), options);
  }

  update(id: string, changes: ConversationPatch): Promise<Conversation> {
    return this.#transport.request("PATCH", conversationPath(id), { body: changes, isSafe: true });
  }

  /** The folders that conversations are in, by name. */
  folders(): AsyncGenerator<Folder, void, undefined> {
    return allItems((cursor) => this.#transport.request("GET", withQuery("/v1/folders", cursor)));
  }

  /** Give a folder another name; null takes all conversations out of it. */
  renameFolder(name: string, newName: string | null): Promise<{ conversations: number }> {
    return this.#transport.request("PATCH", "/v1/folders", { body: { name, new_name: newName } });
  }

  /** Delete it with its files. It can be restored until the retention period has passed. */
  delete(id: string): Promise<undefined> {
    return this.#transport.request("DELETE", conversationPath(id));
  }

  /** Erase it for good, with its files, whether it was deleted or not. It cannot be restored. */
  erase(id: string): Promise<undefined> {
    return this.#transport.request("POST", `${conversationPath(id)}/erase`, { isSafe: true });
  }

  restore(id: string): Promise<Conversation> {
    return this.#transport.request("POST", `${conversationPath(id)}/restore`, { isSafe: true });
  }

  /** All messages, oldest first. Pages are fetched as they are read. */
  messages(id: string, query: MessageQuery = {}): AsyncGenerator<Message, void, undefined> {
    return allItems((cursor) => this.messagePage(id, { ...query, ...cursor }));
  }

  /** One page of messages. */
  messagePage(id: string, query: MessageQuery = {}, options?: RequestOptions): Promise<ListPage<Message>> {
    return this.#transport.request("GET", withQuery(`${conversationPath(id)}/messages`, query), options);
  }
}

async function* allItems<Item>(page: (cursor: { cursor?: string }) => Promise<ListPage<Item>>): AsyncGenerator<Item, void, undefined> {
  let cursor: string | null = null;
  do {
    const { data, next_cursor: next }: ListPage<Item> = await page(cursor === null ? {} : { cursor });
    yield* data;
    cursor = next;
  } while (cursor !== null);
}

const conversationPath = (id: string): string => `/v1/conversations/${encodeURIComponent(id)}`;
