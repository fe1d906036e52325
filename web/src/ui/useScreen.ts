/** Whether the screen is as narrow as that of a phone, as the styles have it. */
import { useSyncExternalStore } from "react";

const query = () => matchMedia("(max-width: 47rem)");

function subscribe(onChange: () => void): () => void {
  const narrow = query();
  narrow.addEventListener("change", onChange);
  return () => narrow.removeEventListener("change", onChange);
}

export const useIsNarrow = (): boolean => useSyncExternalStore(subscribe, () => query().matches);
