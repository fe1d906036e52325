/** How components reach the state and the desk. */
import { createContext, useContext, useRef, useSyncExternalStore } from "react";

import type { Desk } from "../effects/desk";
import type { State } from "../state/state";

const DeskContext = createContext<Desk | null>(null);
export const DeskProvider = DeskContext.Provider;

export function useDesk(): Desk {
  const desk = useContext(DeskContext);
  if (!desk) throw new Error("a component stands outside of DeskProvider");
  return desk;
}

/** What `select` finds in the state; the component is drawn again when that changes. */
export function useSelect<Value>(select: (state: State) => Value): Value {
  const { store } = useDesk();
  const last = useRef<{ state: State; select: typeof select; value: Value } | null>(null);
  return useSyncExternalStore(store.subscribe, () => {
    const state = store.get();
    if (last.current?.state === state && last.current.select === select) return last.current.value;
    const value = select(state);
    last.current = { state, select, value };
    return value;
  });
}
