/** The whole page: the list of conversations, and beside it a conversation or the settings. */
import { lazy, Suspense, useCallback, useEffect, useLayoutEffect, useRef, useState } from "react";

import { pathOf, type Route } from "../state/route";
import { threadId } from "../state/selectors";
import { NEW } from "../state/state";
import { words } from "../words";
import { brandName, Mark } from "./Brand";
import { Chat } from "./Chat";
import { useSelect, useServices } from "./context";
import { ConversationNav } from "./ConversationNav";
import { MenuButton, NewConversationLink } from "./Head";
import { Icon } from "./Icon";
import { SessionEnded, SignIn } from "./SignIn";
import { InviteView } from "./Invite";
import { RouteLink } from "./RouteLink";
import { Shortcuts } from "./Shortcuts";
import { ThemeSwitch } from "./ThemeSwitch";
import { TurnView } from "./TurnView";
import { UnknownAddress } from "./UnknownAddress";

const Settings = lazy(() => import("./settings/Settings"));
const ShareView = lazy(() => import("./share/ShareView"));
const MoveDialog = lazy(() => import("./MoveDialog"));
const Trash = lazy(() => import("./Trash"));
const SourcePanel = lazy(() => import("./source/SourcePanel"));
const TimelineView = lazy(() => import("./timeline/TimelineView"));

export function App() {
  const session = useSelect((state) => state.session);
  const route = useSelect((state) => state.route);
  if (route.page === "invite") return <InviteView secret={route.secret} />;
  if (route.page === "share")
    return (
      <Suspense fallback={<p className="centered">{words.session.starting}</p>}>
        <ShareView key={route.token} token={route.token} />
      </Suspense>
    );
  if (session === "starting") return <p className="centered">{words.session.starting}</p>;
  if (session === "unreachable")
    return (
      <p className="centered" role="alert">
        {words.session.unreachable}
      </p>
    );
  if (session === "signed_out") return route.page === "unknown" ? <UnknownAddress /> : <SignIn />;
  // The page stays, with everything that was typed, and cannot be used until the user is signed in again.
  return (
    <>
      <div className="page" inert={session === "ended"}>
        <Layout />
      </div>
      {session === "ended" && <SessionEnded />}
    </>
  );
}

function Layout() {
  const { navigation } = useServices();
  const route = useSelect((state) => state.route);
  const id = useSelect(threadId);
  const hasSource = route.page === "chat" && route.item !== undefined;
  useFocusAfterSource(hasSource ? pathOf(route) : null);
  const [isListOpen, setIsListOpen] = useState(false);
  const closeList = useCallback(() => setIsListOpen(false), []);
  const openList = useCallback(() => setIsListOpen(true), []);
  const side = useRef<HTMLElement>(null);
  useFocusInside(side, isListOpen);
  useIgnoredDrops();
  return (
    <div className={["layout", isListOpen && "is-list-open", hasSource && "has-source"].filter(Boolean).join(" ")}>
      <a
        className="skip"
        href="#message"
        onClick={(event) => {
          event.preventDefault();
          focusContent();
        }}
      >
        {route.page === "chat" ? words.skip.chat : words.skip.other}
      </a>
      <aside ref={side} className="side" onKeyDown={(event) => event.key === "Escape" && closeList()}>
        <div className="brand">
          <Mark />
          <span className="brand-name">{brandName()}</span>
          <button type="button" className="tool only-narrow" onClick={closeList} aria-label={words.closeMenu}>
            <Icon name="close" />
          </button>
        </div>
        <ConversationNav onChosen={closeList} />
        <RouteLink className="who" route={{ page: "trash" }} aria-current={route.page === "trash" ? "page" : undefined} onClick={closeList}>
          <span className="who-icon">
            <Icon name="trash" />
          </span>
          {words.trash.title}
        </RouteLink>
        <Who onChosen={closeList} />
        <div className="side-foot">
          <a
            href="/settings/usage"
            aria-current={route.page === "settings" ? "page" : undefined}
            onClick={(event) => {
              event.preventDefault();
              navigation.go({ page: "settings", section: "usage" });
              closeList();
            }}
          >
            <Icon name="gear" />
            {words.menu.settings}
          </a>
          <ThemeSwitch />
        </div>
      </aside>
      <div className="backdrop" onClick={closeList} aria-hidden="true" />
      {route.page === "settings" ? (
        <Suspense fallback={<main className="main centered">{words.settings.loading}</main>}>
          <Settings section={route.section} item={route.item} onMenu={openList} />
        </Suspense>
      ) : route.page === "trash" ? (
        <Suspense fallback={<main className="main centered">{words.settings.loading}</main>}>
          <Trash onMenu={openList} />
        </Suspense>
      ) : route.page === "unknown" ? (
        <UnknownAddress onMenu={openList} />
      ) : route.page === "timeline" ? (
        <Suspense fallback={<main className="main centered">{words.settings.loading}</main>}>
          <TimelineView key={route.turnId} turnId={route.turnId} onMenu={openList} />
        </Suspense>
      ) : route.page === "turn" ? (
        <TurnView turnId={route.turnId} onMenu={openList} />
      ) : (
        <>
          <Chat threadId={id} passage={route.page === "chat" ? route.passage : undefined} lead={<MenuButton onMenu={openList} />} tools={id !== NEW && <NewConversationLink />} />
          <SourceAside route={route} />
        </>
      )}
      <NoticeList />
      <Moving />
      <Shortcuts openList={openList} />
    </div>
  );
}

/** The source that is open beside the chat. */
export function SourceAside({ route }: { route: Route }) {
  if (route.page !== "chat" || !route.item) return null;
  return (
    <Suspense fallback={<aside className="panel faint">{words.settings.loading}</aside>}>
      <SourcePanel route={route} item={route.item} />
    </Suspense>
  );
}

/** The dialog for the folder of a conversation, while it is asked for. */
function Moving() {
  const id = useSelect((state) => state.conversations.moving);
  return id === null ? null : (
    <Suspense fallback={null}>
      <MoveDialog id={id} />
    </Suspense>
  );
}

/** Who is signed in. */
function Who({ onChosen }: { onChosen: () => void }) {
  const me = useSelect((state) => state.me);
  const route = useSelect((state) => state.route);
  const name = me?.user ? (me.user.name ?? me.user.external_id) : words.account.key;
  return (
    <RouteLink route={{ page: "settings", section: "account" }} className="who" aria-current={route.page === "settings" && route.section === "account" ? "page" : undefined} onClick={onChosen} title={words.account.signedInAs(name)}>
      <span className="who-initial" aria-hidden="true">
        {[...name.trim()][0]?.toUpperCase() ?? "?"}
      </span>
      <span className="who-name">{name}</span>
      {me && me.role !== "member" && <span className="tag">{words.people.roles.admin}</span>}
    </RouteLink>
  );
}

/** The message box if it is in view, else the source that covers it, or the page itself. */
function focusContent(): void {
  const found = ["#message", ".panel", "main"].map((place) => document.querySelector<HTMLElement>(place)).find((element) => element?.checkVisibility({ visibilityProperty: true }));
  if (found && found.tabIndex < 0) found.tabIndex = -1;
  found?.focus();
}

/** On a small screen the list takes the focus when it opens, and gives it back when it closes. */
function useFocusInside(side: { current: HTMLElement | null }, isOpen: boolean): void {
  useLayoutEffect(() => {
    const { current: element } = side;
    const { activeElement: opener } = document;
    if (!isOpen || !element || element.contains(opener)) return undefined;
    element.querySelector<HTMLElement>(".only-narrow")?.focus();
    // In a microtask, because React restores the focus after a change; and not if another element has taken it.
    return () =>
      queueMicrotask(() => {
        const { activeElement: active } = document;
        if ((element.contains(active) || active === document.body) && opener instanceof HTMLElement) opener.focus();
      });
  }, [side, isOpen]);
}

/** When a source is closed, the focus goes back to the link that opened it. On a small screen the link is hidden meanwhile. */
export function useFocusAfterSource(opened: string | null): void {
  const opener = useRef<Element | null>(null);
  useLayoutEffect(() => {
    const { activeElement: active } = document;
    if (opened !== null && !active?.closest(".panel")) opener.current = active;
  }, [opened]);
  useEffect(() => {
    if (opened !== null || !(opener.current instanceof HTMLElement)) return;
    if (opener.current.isConnected) opener.current.focus();
    opener.current = null;
  }, [opened]);
}

/** A file that is dropped outside of the chat is ignored. Otherwise the browser would leave the page and open it. */
export function useIgnoredDrops(): void {
  useEffect(() => {
    const refuse = (event: DragEvent) => {
      if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      event.dataTransfer.dropEffect = "none";
    };
    addEventListener("dragover", refuse);
    addEventListener("drop", refuse);
    return () => {
      removeEventListener("dragover", refuse);
      removeEventListener("drop", refuse);
    };
  }, []);
}

/** Results, shown for some seconds, and errors, shown until they are dismissed. They have a row of the layout and cover nothing. */
export function NoticeList() {
  const { notices } = useServices();
  const shown = useSelect((state) => state.notices);
  return (
    <div className="notices" role="region" aria-label={words.notices}>
      {shown.map((notice) => (
        <div key={notice.id} className={notice.kind === "error" ? "notice is-failure" : "notice"} role={notice.kind === "error" ? "alert" : "status"}>
          <span>{notice.text}</span>
          <button type="button" className="tool is-small" onClick={() => notices.dismiss(notice.id)} aria-label={words.dismiss}>
            <Icon name="close" />
          </button>
        </div>
      ))}
    </div>
  );
}
