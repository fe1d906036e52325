/** The thread in view is looked at: what is followed tells by itself, what nobody follows is asked for. */
import { expect, test, vi } from "vitest";

import { Desk } from "../src/effects/desk";
import { newState } from "../src/state/state";
import { createStore } from "../src/state/store";
import * as routes from "../src/wire/routes";
import type { Conversation } from "../src/wire/types";

vi.mock("../src/wire/routes");
vi.mock("../src/effects/follow", () => ({
  Follower: class {
    turnId: string;
    constructor(turnId: string) {
      this.turnId = turnId;
    }
    close() {}
    hurry() {}
  },
}));

test("a turn in view is asked for while the stream belongs to another", async () => {
  const heard = new Map<string, () => void>();
  vi.stubGlobal("addEventListener", (name: string, listener: () => void) => heard.set(name, listener));
  vi.stubGlobal("document", { addEventListener: () => undefined, visibilityState: "hidden" });
  vi.stubGlobal("navigator", { onLine: true });
  vi.useFakeTimers();
  vi.mocked(routes.me).mockReturnValue(new Promise(() => undefined));
  vi.mocked(routes.conversation).mockReturnValue(new Promise(() => undefined));
  const desk = new Desk(createStore(newState({ page: "chat", conversationId: "conv_1" })));
  void desk.start();
  desk.store.dispatch({ type: "thread/loaded", id: "conv_1", conversation: { id: "conv_1" } as Conversation, page: { data: [], next_cursor: null } });

  desk.follow("conv_1", "t1");
  heard.get("online")?.();
  expect(routes.conversation).not.toHaveBeenCalled();

  desk.follow("conv_2", "t2");
  heard.get("online")?.();
  expect(routes.conversation).toHaveBeenCalledTimes(1);
  vi.useRealTimers();
  vi.unstubAllGlobals();
});
