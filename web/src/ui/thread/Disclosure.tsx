/** A part that can be opened. It stays open when its row leaves the view and is drawn again. */
import { createContext, type ReactNode, useContext, useState } from "react";

const Opened = createContext<Set<string>>(new Set());
export const OpenedProvider = Opened.Provider;

/** A choice of the reader about a part of a row, by name. It stays when the row leaves the view and is drawn again. */
export function useOpened(name: () => string): [isOpen: boolean, setIsOpen: (isOpen: boolean) => void] {
  const opened = useContext(Opened);
  const [isOpen, setIsOpen] = useState(() => opened.has(name()));
  const change = (value: boolean) => {
    setIsOpen(value);
    if (value) opened.add(name());
    else opened.delete(name());
  };
  return [isOpen, change];
}

export function Disclosure({ name, className, children, ...rest }: { name: string; className: string; children: ReactNode; "data-step"?: string }) {
  const [isOpen, setIsOpen] = useOpened(() => name);
  return (
    <details {...rest} className={className} open={isOpen} onToggle={(event) => setIsOpen(event.currentTarget.open)}>
      {children}
    </details>
  );
}
