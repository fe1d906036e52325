/** Files on their way into the next message of a thread: within the limits, each with its own progress. */
import { threadId } from "../state/select";
import { NEW } from "../state/state";
import type { Store } from "../state/store";
import * as routes from "../wire/routes";
import type { FileRef, StoredFile } from "../wire/types";
import { sizeInWords, words } from "../words";
import { keep, kept } from "./kept";
import { type Office, sentence } from "./office";
import { type Progress, uploadAlone, uploadInto } from "./upload";

export class Uploads {
  #store: Store;
  #office: Office;
  #uploads = new Map<string, AbortController>();
  #making: Promise<string> | null = null;

  constructor(store: Store, office: Office) {
    this.#store = store;
    this.#office = office;
  }

  /**
   * Upload these for the next message of this thread, each with its own progress, within the limits. For an edit the
   * conversation is named apart, and so is how many files the message keeps.
   */
  attach(id: string, files: readonly File[], { conversationId = id, taken = 0 } = {}): void {
    const { me, attaching } = this.#store.get();
    if (!me || !files.length) return;
    const room = me.max_files_per_message - (attaching[id]?.length ?? 0) - taken;
    if (files.length > room) this.#office.say(words.composer.tooMany(me.max_files_per_message), "error");
    for (const file of files.slice(0, Math.max(room, 0))) {
      if (file.size > me.max_file_bytes) this.#office.say(words.composer.tooLarge(file.name, sizeInWords(file.size), sizeInWords(me.max_file_bytes)), "error");
      else if (file.size === 0) this.#office.say(words.composer.empty(file.name), "error");
      else void this.#upload(id, conversationId, file);
    }
  }

  async #upload(id: string, conversationId: string, file: File): Promise<void> {
    const key = crypto.randomUUID();
    const abort = new AbortController();
    this.#uploads.set(key, abort);
    const preview = file.type.startsWith("image/") && file.type !== "image/svg+xml" ? URL.createObjectURL(file) : null;
    this.#store.dispatch({
      type: "attaching/added",
      threadId: id,
      attaching: { key, name: file.name, size: file.size, mime_type: file.type, preview, progress: 0, stored: null, error: null },
    });
    const progress = {
      signal: abort.signal,
      onProgress: (share: number) => this.#store.dispatch({ type: "attaching/changed", key, changes: { progress: share } }),
    };
    try {
      const stored = conversationId === NEW ? await this.#uploadToNobody(file, progress) : await uploadInto(conversationId, file, progress);
      const ref: FileRef = { type: "file", file_id: stored.id, name: stored.name, mime_type: stored.mime_type, size: stored.size };
      this.#store.dispatch({ type: "attaching/changed", key, changes: { stored: ref, progress: 1 } });
    } catch (error) {
      if (!abort.signal.aborted) this.#store.dispatch({ type: "attaching/changed", key, changes: { error: sentence(error) } });
    } finally {
      this.#uploads.delete(key);
    }
  }

  /** For a conversation that does not exist yet. If the files live in a bucket elsewhere, the conversation is made first. */
  async #uploadToNobody(file: File, progress: Progress): Promise<StoredFile> {
    const stored = await uploadAlone(file, progress);
    if (stored !== null) return stored;
    this.#making ??= routes.createConversation({}).then(({ id }) => id);
    const id = await this.#making;
    if (threadId(this.#store.get()) === NEW) {
      this.move(id);
      this.#office.go({ page: "chat", conversationId: id });
    }
    this.#making = null;
    return await uploadInto(id, file, progress);
  }

  /** The conversation that was begun has an id now: what was written and attached for it since goes along. */
  move(id: string): void {
    this.#store.dispatch({ type: "attaching/moved", from: NEW, to: id });
    keep(`draft:${id}`, kept(`draft:${NEW}`));
    keep(`draft:${NEW}`, null);
  }

  detach(key: string): void {
    this.#uploads.get(key)?.abort();
    const all = Object.values(this.#store.get().attaching).flat();
    const one = all.find((attaching) => attaching.key === key);
    if (one?.preview) URL.revokeObjectURL(one.preview);
    if (one?.stored) void routes.deleteFile(one.stored.file_id).catch(() => undefined);
    this.#store.dispatch({ type: "attaching/removed", key });
  }

  /** They belong to a message now. */
  attached(id: string): void {
    for (const one of this.#store.get().attaching[id] ?? []) if (one.preview) URL.revokeObjectURL(one.preview);
    this.#store.dispatch({ type: "attaching/cleared", threadId: id });
  }
}
