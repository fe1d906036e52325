/** The thread in view is compared with the server, unless its stream already tells what happens. */
import { expect, test, vi } from "vitest";

import type { Conversation, TurnReader } from "@turnkeep/client";
import { createServices } from "../src/effects/services";
import { start } from "../src/effects/session";
import { newState } from "../src/state/state";
import { createStore } from "../src/state/store";
import * as routes from "../src/wire/routes";

vi.mock("../src/wire/routes");

test("a live turn in view is read from the server while the stream belongs to another turn", async () => {
  const listeners = new Map<string, () => void>();
  vi.stubGlobal("addEventListener", (name: string, listener: () => void) => listeners.set(name, listener));
  vi.stubGlobal("document", { addEventListener: () => undefined, visibilityState: "hidden" });
  vi.stubGlobal("navigator", { onLine: true });
  vi.useFakeTimers();
  vi.mocked(routes.follow).mockImplementation((turnId) => ({ turnId, close: () => undefined, reconnect: () => undefined }) as unknown as TurnReader);
  vi.mocked(routes.me).mockReturnValue(new Promise(() => undefined));
  vi.mocked(routes.conversation).mockReturnValue(new Promise(() => undefined));
  const services = createServices(createStore(newState({ page: "chat", conversationId: "conv_1" })));
  void start(services);
  services.store.dispatch({ type: "thread/loaded", id: "conv_1", conversation: { id: "conv_1" } as Conversation, page: { data: [], next_cursor: null } });

  services.threads.follow("conv_1", "t1");
  listeners.get("online")?.();
  expect(routes.conversation).not.toHaveBeenCalled();

  services.threads.follow("conv_2", "t2");
  listeners.get("online")?.();
  expect(routes.conversation).toHaveBeenCalledTimes(1);
  vi.useRealTimers();
  vi.unstubAllGlobals();
});
