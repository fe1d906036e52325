/** Files that the user attaches to a message: checked against the limits, and uploaded with progress. */
import { threadId } from "../state/selectors";
import { NEW } from "../state/state";
import { ApiError, asProblem } from "../wire/client";
import * as routes from "../wire/routes";
import type { FileRef, ListPage, StoredFile } from "../wire/types";
import { sizeInWords, words } from "../words";
import { errorText } from "./notices";
import type { Services } from "./services";
import { readStored, writeStored } from "./storage";

type Needs = Pick<Services, "store" | "navigation"> & { notices: Pick<Services["notices"], "show"> };

export class Uploads {
  #needs: Needs;
  #running = new Map<string, AbortController>();
  #creation: Promise<string> | null = null;

  constructor(needs: Needs) {
    this.#needs = needs;
  }

  /**
   * Upload these files for the next message of this thread. An edit has a key of its own instead of the thread's id; it
   * names the conversation, and how many files the message already has.
   */
  attach(id: string, files: readonly File[], { conversationId = id, taken = 0 } = {}): void {
    const { me, uploads } = this.#needs.store.get();
    if (!me || !files.length) return;
    const free = me.max_files_per_message - (uploads[id]?.length ?? 0) - taken;
    if (files.length > free) this.#needs.notices.show(words.composer.tooMany(me.max_files_per_message), "error");
    for (const file of files.slice(0, Math.max(free, 0))) {
      if (file.size > me.max_file_bytes) this.#needs.notices.show(words.composer.tooLarge(file.name, sizeInWords(file.size), sizeInWords(me.max_file_bytes)), "error");
      else if (file.size === 0) this.#needs.notices.show(words.composer.empty(file.name), "error");
      else void this.#upload(id, conversationId, file);
    }
  }

  async #upload(id: string, conversationId: string, file: File): Promise<void> {
    const key = crypto.randomUUID();
    const abort = new AbortController();
    this.#running.set(key, abort);
    const preview = file.type.startsWith("image/") && file.type !== "image/svg+xml" ? URL.createObjectURL(file) : null;
    this.#needs.store.dispatch({
      type: "upload/added",
      threadId: id,
      upload: { key, name: file.name, size: file.size, mime_type: file.type, preview, progress: 0, stored: null, error: null },
    });
    const progress = {
      signal: abort.signal,
      onProgress: (share: number) => this.#needs.store.dispatch({ type: "upload/changed", key, changes: { progress: share } }),
    };
    try {
      const stored = conversationId === NEW ? await this.#uploadToNew(file, progress) : await uploadToConversation(conversationId, file, progress);
      const ref: FileRef = { type: "file", file_id: stored.id, name: stored.name, mime_type: stored.mime_type, size: stored.size };
      this.#needs.store.dispatch({ type: "upload/changed", key, changes: { stored: ref, progress: 1 } });
    } catch (error) {
      if (!abort.signal.aborted) this.#needs.store.dispatch({ type: "upload/changed", key, changes: { error: errorText(error) } });
    } finally {
      this.#running.delete(key);
    }
  }

  /** For a conversation that does not exist yet. If files live in a bucket of another origin, the conversation is created first. */
  async #uploadToNew(file: File, progress: Progress): Promise<StoredFile> {
    const stored = await uploadWithoutConversation(file, progress);
    if (stored !== null) return stored;
    this.#creation ??= routes.createConversation({}).then(({ id }) => id);
    const id = await this.#creation;
    if (threadId(this.#needs.store.get()) === NEW) {
      this.moveDraft(id);
      this.#needs.navigation.go({ page: "chat", conversationId: id });
    }
    this.#creation = null;
    return await uploadToConversation(id, file, progress);
  }

  /** The new conversation has an id: the text and the files of its next message move to it. */
  moveDraft(id: string): void {
    this.#needs.store.dispatch({ type: "upload/moved", from: NEW, to: id });
    writeStored(`draft:${id}`, readStored(`draft:${NEW}`));
    writeStored(`draft:${NEW}`, null);
  }

  /** Take a file out of its message: its upload is stopped, or the stored file is deleted. */
  detach(key: string): void {
    this.#running.get(key)?.abort();
    const all = Object.values(this.#needs.store.get().uploads).flat();
    const one = all.find((upload) => upload.key === key);
    if (one?.preview) URL.revokeObjectURL(one.preview);
    if (one?.stored) void routes.deleteFile(one.stored.file_id).catch(() => undefined);
    this.#needs.store.dispatch({ type: "upload/removed", key });
  }

  /** The files were sent with a message: forget them here. */
  attached(id: string): void {
    for (const one of this.#needs.store.get().uploads[id] ?? []) if (one.preview) URL.revokeObjectURL(one.preview);
    this.#needs.store.dispatch({ type: "upload/cleared", threadId: id });
  }
}

interface Progress {
  onProgress(share: number): void;
  signal: AbortSignal;
}

/** One multipart POST into the files of a conversation. */
async function uploadToConversation(conversationId: string, file: File, progress: Progress): Promise<StoredFile> {
  const form = new FormData();
  form.append("file", file, file.name);
  const text = await transfer("POST", `/v1/conversations/${conversationId}/files`, {}, form, progress);
  const stored = (JSON.parse(text) as ListPage<StoredFile>).data[0];
  if (!stored) throw new ApiError(502, "unknown", "The server did not say what it stored.");
  return stored;
}

/**
 * For a conversation that does not exist yet: the file is announced, put and completed, and joins the conversation with the
 * turn that attaches it. Null if the server wants it in a bucket of another origin, which the page never talks to.
 */
async function uploadWithoutConversation(file: File, progress: Progress): Promise<StoredFile | null> {
  const announced = await routes.announceFile({ name: file.name, size: file.size, mime_type: file.type || "application/octet-stream" });
  const url = new URL(announced.upload.url, location.href);
  if (url.origin !== location.origin) return null;
  await transfer(announced.upload.method, url.href, announced.upload.headers, file, progress);
  return await routes.completeFile(announced.file.id);
}

/** XMLHttpRequest, because fetch does not tell how much was sent. */
function transfer(
  method: string,
  url: string,
  headers: Record<string, string>,
  body: XMLHttpRequestBodyInit,
  { onProgress, signal }: Progress,
): Promise<string> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, url);
    request.setRequestHeader("accept", "application/json");
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) onProgress(event.loaded / event.total);
    });
    request.addEventListener("load", () => {
      if (request.status >= 200 && request.status < 300) resolve(request.responseText);
      else reject(asProblem(request.status, request.responseText));
    });
    request.addEventListener("error", () => reject(new ApiError(0, "unreachable", "The connection broke during the upload.")));
    request.addEventListener("abort", () => reject(new ApiError(0, "aborted", "The upload was cancelled.")));
    signal.addEventListener("abort", () => request.abort());
    request.send(body);
  });
}
