/**
 * Addresses of files that the browser itself requests: pictures and downloads. On the page they are those of the API,
 * with the cookie. An embedded chat and a share link have a token instead, which only a script can send: it loads the bytes,
 * and gives the browser an address of them.
 */
import * as routes from "../wire/routes";
import { isShared } from "../wire/addresses";
import { isEmbedded } from "./addresses";

/** The address at which the browser finds this path of the API at once; null if it must be loaded first. */
export const directAddress = (path: string): string | null => (isEmbedded || isShared ? null : path);

/** The address of the bytes at this path. Give it to `URL.revokeObjectURL` when it is not shown any more. */
export async function loadedAddress(path: string): Promise<string> {
  return URL.createObjectURL(await routes.bytes(path));
}

/** Let the browser save the bytes at this path. */
export async function download(path: string, name: string): Promise<void> {
  const url = await loadedAddress(path);
  const link = document.createElement("a");
  link.href = url;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
