/** How components reach the state and the services. */
import { createContext, useContext, useRef, useSyncExternalStore } from "react";

import type { Services } from "../effects/services";
import type { State } from "../state/state";

const ServicesContext = createContext<Services | null>(null);
export const ServicesProvider = ServicesContext.Provider;

export function useServices(): Services {
  const services = useContext(ServicesContext);
  if (!services) throw new Error("This component must be inside ServicesProvider.");
  return services;
}

/** The value that `select` finds in the state. The component is drawn again when it changes. */
export function useSelect<Value>(select: (state: State) => Value): Value {
  const { store } = useServices();
  const last = useRef<{ state: State; select: typeof select; value: Value } | null>(null);
  return useSyncExternalStore(store.subscribe, () => {
    const state = store.get();
    if (last.current?.state === state && last.current.select === select) return last.current.value;
    const value = select(state);
    last.current = { state, select, value };
    return value;
  });
}
