/** A page, a table or a file that an answer cites, or the files of the conversation, shown beside the conversation; on a small screen instead of it. */
import { useEffect, useRef } from "react";

import { pathOf, type KnowledgeItem, type Route } from "../../state/route";
import { words } from "../../words";
import { useServices } from "../context";
import { Icon } from "../Icon";
import { FileView } from "./FileView";
import { ConversationFiles } from "./ConversationFiles";
import { PageView } from "./PageView";
import { TableView } from "./TableView";

type Chat = Extract<Route, { page: "chat" }>;

export default function SourcePanel({ route, item }: { route: Chat; item: KnowledgeItem }) {
  const { navigation } = useServices();
  const panel = useRef<HTMLElement>(null);
  const close = () => navigation.close({ page: "chat", conversationId: route.conversationId });
  const address = pathOf(route);
  // The panel takes the focus for the keyboard. The cited passage takes it as soon as it is drawn.
  useEffect(() => {
    if (!panel.current?.contains(document.activeElement)) panel.current?.focus();
  }, [address]);
  const tools = (
    <button type="button" className="tool" onClick={close} aria-label={words.source.close} title={words.source.close}>
      <Icon name="close" />
    </button>
  );
  return (
    <aside
      ref={panel}
      className="panel"
      aria-label={words.source.label}
      tabIndex={-1}
      onKeyDown={(event) => {
        if (event.key === "Escape") close();
      }}
    >
      {item.kind === "page" && <PageView id={item.id} passage={item.passage} tools={() => tools} />}
      {item.kind === "table" && <TableView id={item.id} row={item.row} tools={() => tools} />}
      {item.kind === "files" && route.conversationId !== null && <ConversationFiles conversationId={route.conversationId} tools={tools} />}
      {item.kind === "file" && <FileView id={item.id} passage={item.passage} tools={tools} />}
    </aside>
  );
}
