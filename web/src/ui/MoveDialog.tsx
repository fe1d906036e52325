/** The dialog in which a folder is chosen for a conversation: one that exists, a new one, or none. Loaded when it is opened. */
import { useEffect, useRef, useState } from "react";

import { allListed } from "../state/conversationList";
import { words } from "../words";
import { useSelect, useServices } from "./context";
import { MAX_FOLDER_CHARS } from "./ConversationNav";
import { Dialog } from "./Dialog";
import { Icon } from "./Icon";

export default function MoveDialog({ id }: { id: string }) {
  const { conversations } = useServices();
  const folders = useSelect((state) => state.conversations.folders);
  const folder = useSelect((state) => (allListed(state.conversations).find((one) => one.id === id) ?? state.threads[id]?.conversation)?.folder || null);
  const [name, setName] = useState("");
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => {
    void conversations.loadFolders();
  }, [conversations]);
  const choose = (chosen: string | null) => {
    if (chosen !== folder) void conversations.move(id, chosen);
    dialog.current?.close();
  };
  return (
    <Dialog dialog={dialog} id="move" title={words.conversations.moveTitle} onClose={() => conversations.askFolder(null)}>
        <ul className="folder-choices">
          {[null, ...folders.map((one) => one.name)].map((one) => (
            <li key={one ?? ""}>
              <button type="button" aria-pressed={one === folder} onClick={() => choose(one)}>
                <Icon name={one === folder ? "check" : one === null ? "close" : "folder"} />
                <span dir="auto">{one ?? words.conversations.noFolder}</span>
              </button>
            </li>
          ))}
        </ul>
        <form
          className="folder-new"
          onSubmit={(event) => {
            event.preventDefault();
            if (name.trim()) choose(name.trim());
          }}
        >
          <input value={name} maxLength={MAX_FOLDER_CHARS} placeholder={words.conversations.newFolder} aria-label={words.conversations.newFolder} dir="auto" onChange={(event) => setName(event.target.value)} />
          <button type="submit" className="button is-main" disabled={!name.trim()}>
            {words.conversations.makeFolder}
          </button>
        </form>
    </Dialog>
  );
}
