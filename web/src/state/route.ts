/** Addresses of the page. */

export const SECTIONS = ["usage", "agents", "keys", "pages", "tables"] as const;
export type Section = (typeof SECTIONS)[number];

export type Route = { readonly page: "chat"; readonly conversationId: string | null } | { readonly page: "settings"; readonly section: Section };

export function routeOf(path: string): Route {
  const [first, second] = path.split("/").filter(Boolean);
  if (first === "c" && second && /^conv_[0-9a-f]{32}$/.test(second)) return { page: "chat", conversationId: second };
  if (first === "settings") return { page: "settings", section: SECTIONS.find((section) => section === second) ?? "usage" };
  return { page: "chat", conversationId: null };
}

export function pathOf(route: Route): string {
  if (route.page === "settings") return `/settings/${route.section}`;
  return route.conversationId === null ? "/" : `/c/${route.conversationId}`;
}
