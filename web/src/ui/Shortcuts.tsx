/** The keys of the page as a dialog, and what the keys do that work everywhere. */
import { useEffect, useRef, useState } from "react";
import { flushSync } from "react-dom";

import { printConversation } from "../effects/export";
import type { Services } from "../effects/services";
import { currentThread } from "../state/selectors";
import { words } from "../words";
import { useServices } from "./context";
import { Dialog } from "./Dialog";

/** `openList` shows the list of conversations, with the search field, where it is hidden. */
export function Shortcuts({ openList }: { openList: () => void }) {
  const services = useServices();
  const [isOpen, setIsOpen] = useState(false);
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      if (event.isComposing) return;
      const act = actionOf(event, services, openList, () => setIsOpen(true));
      if (!act) return;
      event.preventDefault();
      act();
    };
    // Before the handlers of elements: Escape must see what is open, not what they have just closed.
    addEventListener("keydown", onKey, { capture: true });
    return () => removeEventListener("keydown", onKey, { capture: true });
  }, [services, openList]);
  return isOpen ? <KeyList onClose={() => setIsOpen(false)} /> : null;
}

/** What the pressed key does; null if it means nothing here. */
function actionOf(event: KeyboardEvent, { store, navigation, threads }: Services, openList: () => void, showKeys: () => void): (() => void) | null {
  const key = event.key.toLowerCase();
  const thread = currentThread(store.get());
  if (event.ctrlKey || event.metaKey) {
    if (key === "k")
      return () => {
        // The search field must be drawn before it can take the focus.
        flushSync(openList);
        document.getElementById("search")?.focus();
      };
    if (key === "o" && event.shiftKey)
      return () => {
        navigation.go({ page: "chat", conversationId: null });
        document.getElementById("message")?.focus();
      };
    if (key === "/") return showKeys;
    if (key === "p" && !event.shiftKey && thread?.older) return () => void printConversation(threads, thread.id);
    return null;
  }
  if (event.altKey) return null;
  if (key === "?" && !isField(event.target)) return showKeys;
  if (key === "escape" && thread?.live && mayStop(event.target)) return () => void threads.stop(thread.id);
  return null;
}

/** Escape first closes what is open. It stops the answer from the message box, from the thread, and where nothing has the focus. */
function mayStop(target: EventTarget | null): boolean {
  if (!(target instanceof Element) || document.querySelector("dialog[open], .menu[open], .is-list-open, .panel, .cite-card")) return false;
  return target.id === "message" || (!isField(target) && !target.closest(".side, form, .wait-card, .confirm"));
}

const isField = (target: EventTarget | null): boolean => target instanceof Element && target.matches("input, textarea, select, [contenteditable]");

function KeyList({ onClose }: { onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  return (
    <Dialog dialog={dialog} id="keys" title={words.keys.title} onClose={onClose}>
      <dl>
        {words.keys.list.map(([keys, meaning]) => (
          <div key={keys}>
            <dt>
              <kbd>{keys}</kbd>
            </dt>
            <dd>{meaning}</dd>
          </div>
        ))}
      </dl>
    </Dialog>
  );
}
