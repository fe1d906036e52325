/**
 * Files that the user attaches to a message: checked against the limits, and uploaded with progress. A file joins a
 * conversation with the turn that attaches it.
 */
import type { FileRef } from "@turnkeep/client";
import type { FileUpload, State } from "../state/state";
import { NEW } from "../state/state";
import * as routes from "../wire/routes";
import { sizeInWords, words } from "../words";
import { errorText, isNotFound } from "./notices";
import type { Services } from "./services";
import { readStored, writeStored } from "./storage";

type Needs = Pick<Services, "store"> & { notices: Pick<Services["notices"], "show"> };

/** An upload that runs, or that has failed and can be tried again. */
interface Job {
  readonly file: File;
  abort: AbortController;
  isRunning: boolean;
}

export class Uploads {
  #needs: Needs;
  #jobs = new Map<string, Job>();
  #restored = new Set<string>();
  #saved: State["uploads"] = {};

  constructor(needs: Needs) {
    this.#needs = needs;
    needs.store.subscribe(() => this.#save());
  }

  /** Whether leaving the page would lose an upload. */
  get isRunning(): boolean {
    return [...this.#jobs.values()].some((job) => job.isRunning);
  }

  /** Upload these files for the next message of this thread, or for an edit, whose message already has some. */
  attach(id: string, files: readonly File[], { taken = 0 } = {}): void {
    const { me, uploads } = this.#needs.store.get();
    if (!me || !files.length) return;
    const free = me.max_files_per_message - (uploads[id]?.length ?? 0) - taken;
    if (files.length > free) this.#needs.notices.show(words.composer.tooMany(me.max_files_per_message), "error");
    for (const file of files.slice(0, Math.max(free, 0))) {
      if (file.size > me.max_file_bytes) this.#needs.notices.show(words.composer.tooLarge(file.name, sizeInWords(file.size), sizeInWords(me.max_file_bytes)), "error");
      else if (file.size === 0) this.#needs.notices.show(words.composer.empty(file.name), "error");
      else this.#begin(id, file);
    }
  }

  /** Upload a file again whose upload has failed. */
  retry(key: string): void {
    const job = this.#jobs.get(key);
    if (!job || job.isRunning) return;
    job.abort = new AbortController();
    this.#change(key, { error: null, progress: 0 });
    void this.#run(key, job);
  }

  /** Take a file out of its message: its upload is stopped, or the stored file is deleted. */
  detach(key: string): void {
    this.#jobs.get(key)?.abort.abort();
    this.#jobs.delete(key);
    const one = this.#find(key);
    if (one?.preview) URL.revokeObjectURL(one.preview);
    if (one?.stored) void routes.deleteFile(one.stored.file_id).catch(() => undefined);
    this.#needs.store.dispatch({ type: "upload/removed", key });
  }

  /** The files were sent with a message: forget them here. */
  attached(id: string): void {
    for (const one of this.#needs.store.get().uploads[id] ?? []) {
      if (one.preview) URL.revokeObjectURL(one.preview);
      this.#jobs.delete(one.key);
    }
    this.#needs.store.dispatch({ type: "upload/cleared", threadId: id });
  }

  /** Put the files of a message that is not sent back to the next message of this thread. */
  giveBack(id: string, files: readonly FileRef[]): void {
    for (const file of files) this.#needs.store.dispatch({ type: "upload/added", threadId: id, upload: uploadOf(file) });
  }

  /** The new conversation has an id: the files of its next message move to it. */
  move(from: string, to: string): void {
    this.#restored.add(to);
    this.#needs.store.dispatch({ type: "upload/moved", from, to });
  }

  /** Show the files that were attached to the next message of this thread before the page was reloaded. */
  restore(id: string): void {
    if (this.#restored.has(id)) return;
    this.#restored.add(id);
    const stored = readStored<FileRef[]>(`files:${id}`) ?? [];
    this.giveBack(id, stored);
    for (const { file_id: fileId } of stored)
      void routes.readFile(fileId).catch((error: unknown) => {
        if (isNotFound(error)) this.#needs.store.dispatch({ type: "upload/removed", key: fileId });
      });
  }

  #begin(id: string, file: File): void {
    const key = crypto.randomUUID();
    const job: Job = { file, abort: new AbortController(), isRunning: true };
    this.#jobs.set(key, job);
    const preview = file.type.startsWith("image/") && file.type !== "image/svg+xml" ? URL.createObjectURL(file) : null;
    const upload = { key, name: file.name, size: file.size, mime_type: file.type, preview, progress: 0, stored: null, error: null };
    this.#needs.store.dispatch({ type: "upload/added", threadId: id, upload });
    void this.#run(key, job);
  }

  async #run(key: string, job: Job): Promise<void> {
    const { signal } = job.abort;
    job.isRunning = true;
    try {
      const stored = await routes.upload(job.file, { signal, onProgress: (progress) => this.#change(key, { progress }) });
      if (signal.aborted) void routes.deleteFile(stored.id).catch(() => undefined);
      const { id, name, mime_type, size } = stored;
      this.#change(key, { stored: { type: "file", file_id: id, name, mime_type, size }, progress: 1 });
      this.#jobs.delete(key);
    } catch (error) {
      if (!signal.aborted) this.#change(key, { error: errorText(error) });
    } finally {
      job.isRunning = false;
    }
  }

  #change(key: string, changes: Partial<FileUpload>): void {
    this.#needs.store.dispatch({ type: "upload/changed", key, changes });
  }

  #find(key: string): FileUpload | undefined {
    return Object.values(this.#needs.store.get().uploads)
      .flat()
      .find((upload) => upload.key === key);
  }

  /** Keep the files of drafts in this browser, for a reload. An edit is not kept. */
  #save(): void {
    const { uploads } = this.#needs.store.get();
    if (uploads === this.#saved) return;
    for (const [id, all] of Object.entries(uploads)) {
      if (all === this.#saved[id] || !(id === NEW || id.startsWith("conv_"))) continue;
      const stored = all.flatMap((one) => (one.stored ? [one.stored] : []));
      writeStored(`files:${id}`, stored.length ? stored : null);
    }
    this.#saved = uploads;
  }
}

/** A file that is stored, as one of the files of a draft. */
function uploadOf(file: FileRef): FileUpload {
  return { key: file.file_id, name: file.name, size: file.size, mime_type: file.mime_type, preview: null, progress: 1, stored: file, error: null };
}
