/**
 * How requests say who sends them. The page has a cookie, which the browser adds. An embedded chat has tokens instead, and
 * sends no cookie: the browser may have one of another user. A share link is its own permission, so it sends no cookie either.
 */
import { isShared } from "./addresses";

export interface TokenSource {
  /** The newest token; null while there is none. */
  readonly token: string | null;
  /** Another token than the one that the server refused; null if there is none. */
  renew(refused: string | null): Promise<string | null>;
}

let source: TokenSource | null = null;

/** From now on, requests carry the tokens of this source. */
export function sendTokens(tokens: TokenSource): void {
  source = tokens;
}

/** `fetch` with the credentials of this document. A request that is refused for its token is sent again with another. */
export const fetchAs: typeof fetch = (path, init) =>
  isShared ? fetchShared(path, init) : source === null ? fetch(path, { ...init, credentials: "same-origin" }) : fetchFrom(source, path, init);

/** The token of the link follows `#`. It is sent in a header, because addresses are written to logs. */
function fetchShared(...[path, init]: Parameters<typeof fetch>): Promise<Response> {
  const headers = new Headers(init?.headers);
  headers.set("turnkeep-share", location.hash.slice(1));
  return fetch(path, { ...init, headers, credentials: "omit", referrerPolicy: "no-referrer" });
}

async function fetchFrom(tokens: TokenSource, ...[path, init]: Parameters<typeof fetch>): Promise<Response> {
  const token = tokens.token ?? (await tokens.renew(null));
  const response = await fetchWith(token, path, init);
  if (response.status !== 401 || token === null) return response;
  const renewed = await tokens.renew(token);
  return renewed === null ? response : await fetchWith(renewed, path, init);
}

function fetchWith(token: string | null, ...[path, init]: Parameters<typeof fetch>): Promise<Response> {
  const headers = new Headers(init?.headers);
  if (token !== null) headers.set("authorization", `Bearer ${token}`);
  return fetch(path, { ...init, headers, credentials: "omit" });
}
