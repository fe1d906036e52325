/** The head of what is shown beside the list. On a small screen it also opens the list, and a new conversation. */
import type { ReactNode } from "react";

import { words } from "../words";
import { Icon } from "./Icon";
import { RouteLink } from "./RouteLink";

export function Head({ onMenu, children }: { onMenu: () => void; children?: ReactNode }) {
  return (
    <header className="head">
      <MenuButton onMenu={onMenu} />
      {children}
      <NewConversationLink />
    </header>
  );
}

/** Opens the list where it is hidden. */
export function MenuButton({ onMenu }: { onMenu: () => void }) {
  return (
    <button type="button" className="tool only-narrow" onClick={onMenu} aria-label={words.openMenu}>
      <Icon name="menu" />
    </button>
  );
}

/** Opens a new conversation where the list is hidden. */
export function NewConversationLink() {
  return (
    <RouteLink className="tool only-narrow head-new" route={{ page: "chat", conversationId: null }} aria-label={words.conversations.begin} title={words.conversations.begin}>
      <Icon name="plus" />
    </RouteLink>
  );
}
