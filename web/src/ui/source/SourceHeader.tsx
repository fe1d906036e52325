/** The header of a page, a table or a file, and the texts for one that cannot be shown. */
import type { ReactNode } from "react";

import type { Route } from "../../state/route";
import { words } from "../../words";
import { Icon, type IconName } from "../Icon";
import { LoadStatus } from "../requestState";
import { RouteLink } from "../RouteLink";

type Kind = "page" | "table" | "file" | "files";
const ICONS: Readonly<Record<Kind, IconName>> = { page: "page", table: "table", file: "file", files: "clip" };

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

export function LoadProblem({ loaded, missing }: { loaded: { error: string | null; isMissing: boolean; reload: () => void }; missing: string }) {
  return loaded.isMissing ? <SourceNote text={missing} /> : <LoadStatus error={loaded.error} onRetry={loaded.reload} />;
}

/** A hint above the content, for example that the cited passage is gone. */
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
