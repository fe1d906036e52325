/** Where this document is, and the addresses of its routes: the page is at the root, the embedded chat below `/embed`. */
import { pathOf, type Route, routeOf } from "../state/route";

const EMBED = "/embed";

/** Whether this is the chat in a frame of another page. */
export const isEmbedded: boolean = /^\/embed(?:\/|$)/.test(globalThis.location?.pathname ?? "/");

/** The address of a route. An embedded chat keeps its query, which says how it was embedded. Its settings are on the page. */
export function addressOf(route: Route): string {
  const path = pathOf(route);
  if (!isEmbedded || route.page !== "chat") return path;
  const [place = "", fragment] = path.split(/(?=#)/);
  return EMBED + (place === "/" ? "" : place) + location.search + (fragment ?? "");
}

/** The address that the browser shows, as `addressOf` writes it. */
export const currentAddress = (): string => location.pathname + (isEmbedded ? location.search : "") + location.hash;

/** The route of the address that the browser shows. An embedded chat has no other routes than chats. */
export function routeHere(): Route {
  if (!isEmbedded) return routeOf(location.pathname, location.hash);
  const route = routeOf(location.pathname.slice(EMBED.length), location.hash);
  return route.page === "chat" ? route : { page: "chat", conversationId: null };
}
