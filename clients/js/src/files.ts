/**
 * Files: upload, read, delete. An upload is announced, sent and completed. Its bytes go to the address that the server gives,
 * in a bucket or at the server. An upload that fails or is stopped leaves nothing.
 */
import { ConnectionLost, errorOf } from "./errors.js";
import { refusalOf, type RequestOptions, type Transport } from "./transport.js";
import type { FileText, NewFile, PendingUpload, StoredFile } from "./wire/types.js";

export interface UploadOptions {
  /** Needed if the bytes are not a `File`. */
  name?: string;
  /** The conversation whose files it joins. Without one it joins the first turn that attaches it. */
  conversationId?: string;
  signal?: AbortSignal;
  /** Called with the share that was sent, from 0 to 1. Only browsers can tell more than the end. */
  onProgress?(share: number): void;
  patienceMs?: number;
}

export class Files {
  #transport: Transport;

  constructor(transport: Transport) {
    this.#transport = transport;
  }

  /** Upload a file. If its bucket cannot be reached from here, it goes through the server. */
  async upload(file: Blob, options: UploadOptions = {}): Promise<StoredFile> {
    const { name = file instanceof File ? file.name : "file", conversationId } = options;
    const body: NewFile = { name, size: file.size, mime_type: file.type || "application/octet-stream" };
    if (conversationId !== undefined) body.conversation_id = conversationId;
    const announced = await this.#announce(body, options);
    try {
      return await this.#transfer(announced, file, options);
    } catch (error) {
      if (!(error instanceof ConnectionLost) || isOwn(announced) || options.signal?.aborted) throw error;
    }
    return await this.#transfer(await this.#announce({ ...body, through_server: true }, options), file, options);
  }

  get(id: string): Promise<StoredFile> {
    return this.#transport.request("GET", filePath(id));
  }

  /** What the file says, without its layout. */
  text(id: string): Promise<FileText> {
    return this.#transport.request("GET", `${filePath(id)}/text`);
  }

  /** The bytes of a file. */
  async read(id: string, options: RequestOptions = {}): Promise<Blob> {
    const response = await this.#transport.send("GET", `${filePath(id)}/content`, { ...options, headers: { accept: "*/*", ...options.headers } });
    if (!response.ok) throw await refusalOf(response);
    return await response.blob();
  }

  delete(id: string): Promise<undefined> {
    return this.#transport.request("DELETE", filePath(id));
  }

  #announce(body: NewFile, options: UploadOptions): Promise<PendingUpload> {
    return this.#transport.request("POST", "/v1/files", { body, isSafe: true, ...attempts(options) });
  }

  /** Send the bytes of an announced file and complete it. If that fails, the file is deleted. */
  async #transfer(announced: PendingUpload, file: Blob, options: UploadOptions): Promise<StoredFile> {
    const { upload } = announced;
    // The server signs the path. Behind a proxy it may know itself under another name than this client does.
    const address = new URL(upload.url, this.#transport.baseUrl || location.href);
    const url = isOwn(announced) ? this.#transport.baseUrl + address.pathname + address.search : address.href;
    try {
      await this.#transport.repeat(() => put(upload.method, url, upload.headers, file, options), attempts(options));
      return await this.#transport.request("POST", `${filePath(announced.file.id)}/complete`, { isSafe: true, ...attempts(options) });
    } catch (error) {
      void this.delete(announced.file.id).catch(() => undefined);
      throw error;
    }
  }
}

const filePath = (id: string): string => `/v1/files/${encodeURIComponent(id)}`;

/** Whether the bytes go to the server itself, and not to a bucket. */
const isOwn = ({ file, upload }: PendingUpload): boolean => new URL(upload.url, "http://localhost").pathname === `/v1/files/${file.id}/content`;

function attempts({ signal, patienceMs }: UploadOptions): Pick<RequestOptions, "signal" | "patienceMs"> {
  return { ...(signal ? { signal } : {}), ...(patienceMs === undefined ? {} : { patienceMs }) };
}

type Headers = Record<string, string>;

async function put(method: string, url: string, headers: Headers, body: Blob, options: UploadOptions): Promise<void> {
  if (options.onProgress && typeof XMLHttpRequest !== "undefined") return await putWithProgress(method, url, headers, body, options);
  let response: Response;
  try {
    response = await fetch(url, { method, headers, body, credentials: "same-origin", ...(options.signal ? { signal: options.signal } : {}) });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    throw new ConnectionLost("The connection broke during the upload.");
  }
  if (!response.ok) throw await refusalOf(response);
  options.onProgress?.(1);
}

/** XMLHttpRequest, because fetch does not tell how much was sent. */
function putWithProgress(method: string, url: string, headers: Headers, body: Blob, { onProgress, signal }: UploadOptions): Promise<void> {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open(method, url);
    for (const [name, value] of Object.entries(headers)) request.setRequestHeader(name, value);
    request.upload.addEventListener("progress", (event) => {
      if (event.lengthComputable) onProgress?.(event.loaded / event.total);
    });
    request.addEventListener("load", () => {
      if (request.status >= 200 && request.status < 300) resolve();
      else reject(errorOf(request.status, request.responseText));
    });
    const lost = () => reject(new ConnectionLost("The connection broke during the upload."));
    request.addEventListener("error", lost);
    request.addEventListener("abort", lost);
    signal?.addEventListener("abort", () => request.abort());
    request.send(body);
  });
}
