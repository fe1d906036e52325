/** What everything that is read here has in common: a heading with its tools, and a word when it is not there. */
import type { ReactNode } from "react";

import type { Route } from "../../state/route";
import { words } from "../../words";
import { Icon, type IconName } from "../Icon";
import { RouteLink } from "../RouteLink";
import { LoadStatus } from "../requests";

type Kind = "page" | "table" | "file";
const ICONS: Readonly<Record<Kind, IconName>> = { page: "page", table: "table", file: "file" };

export function SourceHeader({ kind, title, about, tools }: { kind: Kind; title: string | null; about: string | null; tools: ReactNode }) {
  return (
    <header className="panel-head">
      <div className="panel-name">
        <p className="panel-kind">
          <Icon name={ICONS[kind]} />
          {words.source.kinds[kind]}
          {about && <span> · {about}</span>}
        </p>
        <h2>{title ?? words.source.kinds[kind]}</h2>
      </div>
      <div className="panel-tools">{tools}</div>
    </header>
  );
}

export function LoadProblem({ loaded, gone }: { loaded: { error: string | null; isGone: boolean; reload: () => void }; gone: string }) {
  return loaded.isGone ? <SourceNote text={gone} /> : <LoadStatus error={loaded.error} onRetry={loaded.reload} />;
}

/** Something that the reader should know before they look for it in vain. */
export function SourceNote({ text }: { text: string }) {
  return (
    <p role="status" className="panel-note">
      <Icon name="warn" />
      {text}
    </p>
  );
}

export function BackLink({ route }: { route: Route }) {
  return (
    <RouteLink route={route} className="button is-link">
      {words.settings.back}
    </RouteLink>
  );
}
