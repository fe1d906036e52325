/** What a source leads to, read beside the conversation that cites it. On a small screen it takes its place. */
import { useEffect, useRef } from "react";

import { pathOf, type Place, type Route } from "../../state/route";
import { words } from "../../words";
import { useServices } from "../context";
import { Icon } from "../Icon";
import { FileText } from "./FileText";
import { PageText } from "./PageText";
import { TableRows } from "./TableRows";

type Chat = Extract<Route, { page: "chat" }>;

export default function Reading({ route, place }: { route: Chat; place: Place }) {
  const { navigation } = useServices();
  const panel = useRef<HTMLElement>(null);
  const close = () => navigation.close({ page: "chat", conversationId: route.conversationId });
  const address = pathOf(route);
  // The keys work here from now on. What is cited takes the focus as soon as it is drawn.
  useEffect(() => {
    if (!panel.current?.contains(document.activeElement)) panel.current?.focus();
  }, [address]);
  const tools = (
    <button type="button" className="tool" onClick={close} aria-label={words.reading.close} title={words.reading.close}>
      <Icon name="close" />
    </button>
  );
  return (
    <aside
      ref={panel}
      className="reading"
      aria-label={words.reading.label}
      tabIndex={-1}
      onKeyDown={(event) => {
        if (event.key === "Escape") close();
      }}
    >
      {place.kind === "page" && <PageText id={place.id} passage={place.passage} tools={() => tools} />}
      {place.kind === "table" && <TableRows id={place.id} row={place.row} tools={() => tools} />}
      {place.kind === "file" && <FileText id={place.id} passage={place.passage} tools={tools} />}
    </aside>
  );
}
