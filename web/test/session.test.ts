/** The session of the page: it ends, goes on, and leaves nothing to another user. */
import { beforeEach, expect, test, vi } from "vitest";

import { type Me, TurnkeepError } from "@turnkeep/client";
import { createServices } from "../src/effects/services";
import { signIn } from "../src/effects/session";
import { pathOf, routeOf } from "../src/state/route";
import { hasUnsavedInput } from "../src/state/selectors";
import { newState } from "../src/state/state";
import { createStore } from "../src/state/store";
import * as routes from "../src/wire/routes";
import { browserInWords } from "../src/words";

vi.mock("../src/wire/routes");

const user = { user_id: "user_1", workspace_id: "ws_1" } as Me;
const expired = () => new TurnkeepError(401, "unauthorized", "Your session has ended. Sign in again.");
const message = { text: "Hello", attachments: [], agentId: null, model: null, ifBusy: "enqueue" } as const;

/** Storages whose names can be listed, as those of a browser. */
function storages(): Record<string, string> {
  const stored: Record<string, string> = {};
  const area = new Proxy(stored, {
    get: (target, name) =>
      ({
        getItem: (item: string) => target[item] ?? null,
        setItem: (item: string, value: string) => void (target[item] = value),
        removeItem: (item: string) => void delete target[item],
      })[name as "getItem"],
  });
  vi.stubGlobal("localStorage", area);
  vi.stubGlobal("sessionStorage", area);
  return stored;
}

function page() {
  const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
  vi.mocked(routes.openapi).mockResolvedValue({ paths: {} });
  for (const route of [routes.models, routes.agents, routes.conversations, routes.conversation, routes.messages]) vi.mocked(route as () => Promise<never>).mockReturnValue(new Promise(() => undefined));
  return services;
}

let reload = vi.fn();

beforeEach(() => {
  vi.resetAllMocks();
  reload = vi.fn();
  vi.stubGlobal("navigator", { onLine: true });
  vi.stubGlobal("location", { reload, pathname: "/", hash: "" });
});

test("a message that was refused because the session had ended is sent after the sign-in, under the same key", async () => {
  storages();
  const services = page();
  vi.mocked(routes.me).mockResolvedValue(user);
  await signIn(services);
  vi.mocked(routes.ask).mockRejectedValueOnce(expired());
  await services.outbox.send(message);
  expect(services.store.get().session).toBe("ended");
  expect(services.store.get().threads["conv_1"]?.outbox).toMatchObject([{ text: "Hello", status: "sending" }]);

  vi.mocked(routes.ask).mockResolvedValue({ turn_id: "t1", conversation_id: "conv_1", events_url: "" });
  await signIn(services);
  expect(services.store.get().session).toBe("signed_in");
  const [first, second, ...more] = vi.mocked(routes.ask).mock.calls;
  expect(more).toEqual([]);
  expect(second?.[1]).toBe(first?.[1]);
  expect(reload).not.toHaveBeenCalled();
});

test("while its request is under way, a message is not sent again", async () => {
  storages();
  const services = page();
  vi.mocked(routes.me).mockResolvedValue(user);
  await signIn(services);
  vi.mocked(routes.ask).mockReturnValue(new Promise(() => undefined));
  void services.outbox.send(message);
  await signIn(services);
  expect(routes.ask).toHaveBeenCalledTimes(1);
});

test("a browser that nobody was signed in with shows the sign-in page, and another failure is no end", async () => {
  storages();
  const services = page();
  vi.mocked(routes.me).mockRejectedValue(expired());
  await signIn(services);
  expect(services.store.get().session).toBe("signed_out");
  vi.mocked(routes.me).mockResolvedValue(user);
  await signIn(services);
  vi.mocked(routes.me).mockRejectedValue(new TurnkeepError(0, "unreachable", "No answer."));
  expect(await services.session.load()).toBe(false);
  expect(services.store.get().session).toBe("signed_in");
});

test("of what one user leaves in the browser another one gets nothing but the theme", async () => {
  const stored = storages();
  const services = page();
  vi.mocked(routes.me).mockResolvedValue(user);
  await signIn(services);
  Object.assign(stored, { "turnkeep:draft:new": '"A secret"', "turnkeep:theme": '"dark"', "another:app": "stays" });
  vi.mocked(routes.me).mockResolvedValue({ ...user, user_id: "user_2" });
  expect(await services.session.load()).toBe(false);
  expect(reload).toHaveBeenCalled();
  expect(stored).toEqual({ "turnkeep:theme": '"dark"', "another:app": "stays", "turnkeep:owner": '"ws_1/user_2"' });
});

test("a sign-in leads back to the address that asked for it, also if the browser comes back at /", async () => {
  storages();
  const id = `conv_${"a".repeat(32)}`;
  vi.stubGlobal("location", { reload, pathname: `/c/${id}`, hash: "#quote=x", origin: "http://here" });
  const replaceState = vi.fn();
  vi.stubGlobal("history", { replaceState });
  vi.mocked(routes.me).mockRejectedValue(expired());
  const before = page();
  await signIn(before);
  expect(before.store.get().session).toBe("signed_out");

  vi.stubGlobal("location", { reload, pathname: "/", hash: "", origin: "http://here" });
  vi.mocked(routes.me).mockResolvedValue(user);
  const after = createServices(createStore(newState(routeOf("/"))));
  await signIn(after);
  expect(after.store.get().route).toEqual({ page: "chat", conversationId: id, passage: { quote: "x" } });
  expect(replaceState).toHaveBeenCalledWith(null, "", `/c/${id}#quote=x`);
  // Only once.
  const later = createServices(createStore(newState(routeOf("/"))));
  await signIn(later);
  expect(later.store.get().route).toEqual({ page: "chat", conversationId: null });
});

test("input that a reload would lose is known", () => {
  const state = newState({ page: "chat", conversationId: null });
  expect(hasUnsavedInput(state)).toBe(false);
  expect(hasUnsavedInput({ ...state, route: { page: "settings", section: "keys" } })).toBe(true);
  expect(hasUnsavedInput({ ...state, uploads: { new: [{ key: "1", name: "a", size: 1, mime_type: "", preview: null, progress: 1, stored: null, error: null }] } })).toBe(true);
});

test("the secret of an invite is read from the fragment, and is in no address that the page writes", () => {
  const secret = `tki_${"a".repeat(43)}`;
  expect(routeOf("/invite", `#${secret}`)).toEqual({ page: "invite", secret });
  expect(pathOf({ page: "invite", secret })).toBe("/invite");
  for (const fragment of ["", "#", "#tki_", "#javascript:alert(1)", `#${secret}<`]) expect(routeOf("/invite", fragment)).toEqual({ page: "invite", secret: "" });
});

test.each([
  ["Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0", "Firefox on Linux"],
  ["Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36", "Chrome on Windows"],
  ["Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36 Edg/140.0", "Edge on Windows"],
  ["Mozilla/5.0 (iPhone; CPU iPhone OS 18_0 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Mobile/15E148 Safari/604.1", "Safari on iPhone"],
  ["Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/18.0 Safari/605.1.15", "Safari on macOS"],
  ["curl/8.5.0", "curl/8.5.0"],
  ["", "Unknown browser"],
])("%s is shown as %s", (sent, shown) => {
  expect(browserInWords(sent)).toBe(shown);
});
