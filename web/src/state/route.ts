/** Routes of the page, and their addresses in the browser. */

export const SECTIONS = ["usage", "agents", "keys", "pages", "tables", "files", "people", "feedback", "webhooks", "shares", "account"] as const;
export type Section = (typeof SECTIONS)[number];

/** A cited passage: its text, and the heading or part (`page 3`) of the document that contains it. */
export interface Passage {
  readonly quote?: string;
  readonly part?: string;
  /** The words that a search found in the passage. Only they are marked. */
  readonly found?: string;
}

/** A page, a table or a file that is open, at the cited passage or row. */
export type KnowledgeItem =
  | { readonly kind: "page"; readonly id: string; readonly passage?: Passage }
  | { readonly kind: "table"; readonly id: string; readonly row?: number }
  | { readonly kind: "file"; readonly id: string; readonly passage?: Passage }
  /** All files of the conversation. */
  | { readonly kind: "files" };

export type Route =
  /** `item` is open beside the conversation; `passage` is cited from the conversation itself. */
  | { readonly page: "chat"; readonly conversationId: string | null; readonly item?: KnowledgeItem; readonly passage?: Passage; /** Who answers in a new conversation. */ readonly agentId?: string }
  | { readonly page: "settings"; readonly section: Section; readonly item?: KnowledgeItem }
  /** A turn that waits for an admin. */
  | { readonly page: "turn"; readonly turnId: string; readonly item?: undefined }
  /** Conversations that were deleted and can be restored. */
  | { readonly page: "trash"; readonly item?: undefined }
  /** What happened in a turn. */
  | { readonly page: "timeline"; readonly turnId: string; readonly item?: undefined }
  /** An invite that was opened. Its secret is in the fragment. */
  | { readonly page: "invite"; readonly secret: string; readonly item?: undefined }
  /** A share link that was opened. Its token is in the fragment. */
  | { readonly page: "share"; readonly token: string; readonly item?: undefined }
  /** An address at which there is nothing. */
  | { readonly page: "unknown"; readonly path: string; readonly item?: undefined };

const MAX_CHARS = 600;
const ID = { conv: /^conv_[0-9a-f]{32}$/, turn: /^turn_[0-9a-f]{32}$/, agent: /^agent_[0-9a-f]{32}$/, page: /^page_[0-9a-f]{32}$/, table: /^table_[0-9a-f]{32}$/, file: /^file_[0-9a-f]{32}$/ } as const;

/** Whether the text is an id of this kind. Sources come from tools, so ids are checked before an address is made of them. */
export const isId = (kind: keyof typeof ID, text: string | null | undefined): text is string => typeof text === "string" && ID[kind].test(text);

export function routeOf(path: string, fragment = ""): Route {
  const [first, second, ...rest] = path.split("/").filter(Boolean);
  if (first === "c" && isId("conv", second)) {
    const item: KnowledgeItem | null = rest.length === 1 && rest[0] === "files" ? { kind: "files" } : itemOf(rest, fragment);
    const passage = item ? undefined : passageOf(fragment);
    return { page: "chat", conversationId: second, ...(item ? { item } : {}), ...(passage ? { passage } : {}) };
  }
  if (first === "settings") {
    const section = second === undefined ? "usage" : SECTIONS.find((one) => one === second);
    if (!section) return { page: "unknown", path };
    const item = itemOf([section, ...rest], fragment);
    return { page: "settings", section, ...(item ? { item } : {}) };
  }
  if (first === "agents" && isId("agent", second)) return { page: "chat", conversationId: null, agentId: second };
  if (first === "turns" && isId("turn", second) && rest[0] === "timeline") return { page: "timeline", turnId: second };
  if (first === "turns" && isId("turn", second)) return { page: "turn", turnId: second };
  if (first === "trash" && second === undefined) return { page: "trash" };
  if (first === "invite") return { page: "invite", secret: /^#(tki_[\w-]{20,100})$/.exec(fragment)?.[1] ?? "" };
  if (first === "share" && second === undefined) return { page: "share", token: /^#(tks_[\w-]{20,100})$/.exec(fragment)?.[1] ?? "" };
  return first === undefined ? { page: "chat", conversationId: null } : { page: "unknown", path };
}

/** The address of a route. The passage is in the fragment, which browsers do not send to servers. */
export function pathOf(route: Route): string {
  const item = route.item ? pathOfItem(route.item) : "";
  if (route.page === "settings") return route.item ? `/settings/${item}` : `/settings/${route.section}`;
  if (route.page === "turn") return `/turns/${route.turnId}`;
  if (route.page === "trash") return "/trash";
  if (route.page === "timeline") return `/turns/${route.turnId}/timeline`;
  if (route.page === "invite") return "/invite";
  if (route.page === "share") return `/share#${route.token}`;
  if (route.page === "unknown") return route.path;
  if (route.conversationId === null) return route.agentId === undefined ? "/" : `/agents/${route.agentId}`;
  return `/c/${route.conversationId}${item ? `/${item}` : fragmentOf(route.passage)}`;
}

function itemOf([folder, id, row]: readonly string[], fragment: string): KnowledgeItem | null {
  const passage = passageOf(fragment);
  if (folder === "pages" && isId("page", id)) return { kind: "page", id, ...(passage ? { passage } : {}) };
  if (folder === "files" && isId("file", id)) return { kind: "file", id, ...(passage ? { passage } : {}) };
  if (folder === "tables" && isId("table", id)) return { kind: "table", id, ...(row && /^[1-9]\d{0,14}$/.test(row) ? { row: Number(row) } : {}) };
  return null;
}

function pathOfItem(item: KnowledgeItem): string {
  if (item.kind === "files") return "files";
  if (item.kind === "table") return `tables/${item.id}${item.row === undefined ? "" : `/${item.row}`}`;
  return `${item.kind}s/${item.id}${fragmentOf(item.passage)}`;
}

function passageOf(fragment: string): Passage | undefined {
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  const quote = given.get("quote")?.slice(0, MAX_CHARS);
  const part = given.get("part")?.slice(0, MAX_CHARS);
  const found = given.get("found")?.slice(0, MAX_CHARS);
  return quote || part ? { ...(quote ? { quote } : {}), ...(part ? { part } : {}), ...(found ? { found } : {}) } : undefined;
}

function fragmentOf(passage: Passage | undefined): string {
  const given = Object.entries({ quote: passage?.quote?.slice(0, MAX_CHARS), part: passage?.part?.slice(0, MAX_CHARS), found: passage?.found?.slice(0, MAX_CHARS) }).filter((one): one is [string, string] => !!one[1]);
  return given.length ? `#${new URLSearchParams(given).toString()}` : "";
}
