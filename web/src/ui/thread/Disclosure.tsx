/** A part that can be opened. It stays open when its row leaves the view and is drawn again. */
import { createContext, type ReactNode, useContext, useState } from "react";

const Opened = createContext<Set<string>>(new Set());
export const OpenedProvider = Opened.Provider;

export function Disclosure({ name, className, children, ...rest }: { name: string; className: string; children: ReactNode; "data-step"?: string }) {
  const opened = useContext(Opened);
  const [isOpen, setIsOpen] = useState(() => opened.has(name));
  return (
    <details
      {...rest}
      className={className}
      open={isOpen}
      onToggle={(event) => {
        const { open } = event.currentTarget;
        setIsOpen(open);
        if (open) opened.add(name);
        else opened.delete(name);
      }}
    >
      {children}
    </details>
  );
}
