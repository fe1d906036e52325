/** The chat in a frame of another page: one conversation, without the list, the settings and a sign-in of its own. */
import { useEffect, useRef } from "react";

import { signIn } from "../effects/session";
import { pathOf } from "../state/route";
import { threadId } from "../state/selectors";
import { words } from "../words";
import { NoticeList, SourceAside, useFocusAfterSource, useIgnoredDrops } from "./App";
import { brandName, Mark } from "./Brand";
import { Chat } from "./Chat";
import { useSelect, useServices } from "./context";
import { Icon } from "./Icon";

export function EmbeddedChat() {
  const { host } = useServices();
  const session = useSelect((state) => state.session);
  if (!host?.isFramed) return <p className="centered">{words.embed.alone}</p>;
  if (session === "starting") return <p className="centered">{words.session.starting}</p>;
  if (session === "unreachable")
    return (
      <p className="centered" role="alert">
        {words.session.unreachable}
      </p>
    );
  if (session === "signed_out")
    return (
      <div className="centered">
        <NoToken />
      </div>
    );
  return (
    <>
      <div className="page" inert={session === "ended"}>
        <Layout />
      </div>
      {session === "ended" && <TokenEnded />}
    </>
  );
}

function Layout() {
  const { navigation } = useServices();
  const route = useSelect((state) => state.route);
  const id = useSelect(threadId);
  const hasSource = route.page === "chat" && route.item !== undefined;
  useFocusAfterSource(hasSource ? pathOf(route) : null);
  useIgnoredDrops();
  if (route.page !== "chat") return null;
  const brand = (
    <>
      <Mark />
      <span className="brand-name">{brandName()}</span>
    </>
  );
  const tools = route.conversationId !== null && (
    <button
      type="button"
      className="tool"
      onClick={() => {
        navigation.go({ page: "chat", conversationId: null });
        document.getElementById("message")?.focus();
      }}
      aria-label={words.conversations.begin}
      title={words.conversations.begin}
    >
      <Icon name="plus" />
    </button>
  );
  return (
    <div className={hasSource ? "layout is-embedded has-source" : "layout is-embedded"}>
      <Chat threadId={id} passage={route.passage} lead={brand} tools={tools} />
      <SourceAside route={route} />
      <NoticeList />
    </div>
  );
}

/** The host page has sent no token, or one that the server refuses. */
function NoToken() {
  const services = useServices();
  return (
    <p role="alert">
      {words.embed.noToken}{" "}
      <button type="button" className="link" onClick={() => void signIn(services)}>
        {words.retry}
      </button>
    </p>
  );
}

/** Over the chat, which keeps everything that was typed. It goes by itself when the host page sends a token. */
function TokenEnded() {
  const dialog = useRef<HTMLDivElement>(null);
  useEffect(() => dialog.current?.focus(), []);
  return (
    <div className="signin-over">
      <div ref={dialog} tabIndex={-1} className="signin-dialog" role="dialog" aria-modal="true" aria-labelledby="session-ended">
        <h1 id="session-ended">{words.session.ended}</h1>
        <NoToken />
      </div>
    </div>
  );
}
