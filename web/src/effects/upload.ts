/**
 * One file on its way to the server, with its progress.
 *
 * In a conversation it is one multipart POST. For a conversation that does not exist yet the file is promised, put and
 * completed, and joins the bag with the turn that attaches it. A bucket of another origin is never spoken to: `put`
 * then answers null, and the caller makes the conversation first.
 */
import { ApiError, asProblem } from "../wire/client";
import { completeFile, promiseFile } from "../wire/routes";
import type { Page, StoredFile } from "../wire/types";

export interface Progress {
  onProgress(share: number): void;
  signal: AbortSignal;
}

export async function uploadInto(conversationId: string, file: File, progress: Progress): Promise<StoredFile> {
  const form = new FormData();
  form.append("file", file, file.name);
  const text = await transfer("POST", `/v1/conversations/${conversationId}/files`, {}, form, progress);
  const stored = (JSON.parse(text) as Page<StoredFile>).data[0];
  if (!stored) throw new ApiError(502, "unknown", "The server did not say what it stored.");
  return stored;
}

export async function uploadAlone(file: File, progress: Progress): Promise<StoredFile | null> {
  const promised = await promiseFile({ name: file.name, size: file.size, mime_type: file.type || "application/octet-stream" });
  const url = new URL(promised.upload.url, location.href);
  if (url.origin !== location.origin) return null;
  await transfer(promised.upload.method, url.href, promised.upload.headers, file, progress);
  return await completeFile(promised.file.id);
}

/** fetch tells nothing about how much was sent, so this is the one place for XMLHttpRequest. */
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
