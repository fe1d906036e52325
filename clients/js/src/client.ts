/** The client: one server, one identity, and the API by topics. */
import { Conversations } from "./conversations.js";
import { Files } from "./files.js";
import type { TurnDisplay } from "./state/turn.js";
import { type ClientOptions, type Method, Transport, withQuery } from "./transport.js";
import { type AskOptions, type Question, Turns } from "./turns.js";
import type { StreamOptions, TurnStream } from "./turnStream.js";
import type { AnswerOf, OperationArguments, PathOf } from "./wire/operations.js";
import type { Me } from "./wire/types.js";

export class Turnkeep {
  readonly turns: Turns;
  readonly conversations: Conversations;
  readonly files: Files;
  #transport: Transport;

  constructor(options: ClientOptions = {}) {
    this.#transport = new Transport(options);
    this.turns = new Turns(this.#transport);
    this.conversations = new Conversations(this.#transport);
    this.files = new Files(this.#transport);
  }

  /** Ask, and wait for the answer. Throws TurnFailed if there is none. A turn that waits for a person is waited for. */
  ask(question: Question, options?: AskOptions & StreamOptions): Promise<TurnDisplay> {
    return this.stream(question, options).result();
  }

  /** Ask, and read the answer as it comes. */
  stream(question: Question, options?: AskOptions & StreamOptions): TurnStream {
    return this.turns.stream(question, options);
  }

  /** Who the server takes the client for, and the limits of files. */
  me(): Promise<Me> {
    return this.#transport.request("GET", "/v1/me");
  }

  /** Any operation of the API. Its path, its parameters, its body and its answer are typed by the OpenAPI document. */
  async request<M extends Method, Path extends PathOf<M>>(method: M, path: Path, ...[options]: OperationArguments<M, Path>): Promise<AnswerOf<M, Path>> {
    const { params, query, ...rest } = (options ?? {}) as { params?: Record<string, unknown>; query?: Record<string, unknown> };
    const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(params?.[name])));
    return await this.#transport.request(method, withQuery(filled, query), rest);
  }

  /** The response to a request, whatever its status: for streams and for bytes. */
  send(...request: Parameters<Transport["send"]>): Promise<Response> {
    return this.#transport.send(...request);
  }
}
