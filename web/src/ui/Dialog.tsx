/** A dialog over the page. It closes with Escape, with its button, and with a click outside of it; the focus goes back to where it was. */
import { type ReactNode, type RefObject, useEffect } from "react";

import { words } from "../words";
import { Icon } from "./Icon";

interface Props {
  dialog: RefObject<HTMLDialogElement | null>;
  id: string;
  title: string;
  className?: string;
  onClose: () => void;
  children: ReactNode;
}

export function Dialog({ dialog, id, title, className = "keys", onClose, children }: Props) {
  useEffect(() => {
    const { activeElement: opener } = document;
    if (!dialog.current?.open) dialog.current?.showModal();
    return () => {
      if (opener instanceof HTMLElement && opener.isConnected) opener.focus();
    };
  }, [dialog]);
  return (
    <dialog
      ref={dialog}
      className={className}
      aria-labelledby={id}
      onClose={onClose}
      onClick={(event) => {
        if (event.target === dialog.current) dialog.current?.close();
      }}
    >
      <div className="keys-body">
        <header className="keys-head">
          <h2 id={id}>{title}</h2>
          <button type="button" className="tool" onClick={() => dialog.current?.close()} aria-label={words.close}>
            <Icon name="close" />
          </button>
        </header>
        {children}
      </div>
    </dialog>
  );
}
