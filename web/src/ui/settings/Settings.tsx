/** The settings: the sections that the server offers and the user's role allows. Loaded when they are opened. */
import { useEffect, useRef } from "react";

import { type KnowledgeItem, SECTIONS, type Section } from "../../state/route";
import { isAdmin } from "../../state/selectors";
import { words } from "../../words";
import { useSelect, useServices } from "../context";
import { Head } from "../Head";
import { Account } from "./Account";
import { Agents } from "./Agents";
import { Files } from "./Files";
import { FeedbackSection } from "./Feedback";
import { Keys } from "./Keys";
import { Pages } from "./Pages";
import { People } from "./People";
import { Shares } from "./Shares";
import { Tables } from "./Tables";
import { UsageSection } from "./Usage";
import { Webhooks } from "./Webhooks";

/** Sections that not every server has, and the route that a server must have for them. */
const NEEDS: Readonly<Partial<Record<Section, string>>> = { pages: "/v1/pages", tables: "/v1/tables", files: "/v1/files", webhooks: "/v1/webhooks", shares: "/v1/shares", feedback: "/v1/feedback" };
const FOR_ADMINS: ReadonlySet<Section> = new Set(["keys", "people", "feedback", "webhooks"]);

interface Props {
  section: Section;
  /** The page or table that is opened in the section. */
  item: KnowledgeItem | undefined;
  onMenu: () => void;
}

export default function Settings({ section, item, onMenu }: Props) {
  const { navigation } = useServices();
  const paths = useSelect((state) => state.paths);
  const admin = useSelect(isAdmin);
  const offered = SECTIONS.filter((one) => (NEEDS[one] === undefined || paths.has(NEEDS[one])) && (admin || !FOR_ADMINS.has(one)));
  const shown = offered.includes(section) ? section : "usage";
  const current = useRef<HTMLAnchorElement>(null);
  // On a small screen the tabs have to be scrolled.
  useEffect(() => {
    current.current?.scrollIntoView({ block: "nearest", inline: "nearest" });
  }, [shown]);
  return (
    <main className="main settings">
      <Head onMenu={onMenu}>
        <h1 className="title">{words.settings.title}</h1>
      </Head>
      <nav className="tabs" aria-label={words.settings.title}>
        {offered.map((one) => (
          <a
            key={one}
            ref={one === shown ? current : null}
            href={`/settings/${one}`}
            aria-current={one === shown ? "page" : undefined}
            onClick={(event) => {
              event.preventDefault();
              navigation.go({ page: "settings", section: one });
            }}
          >
            {words.settings.sections[one]}
          </a>
        ))}
      </nav>
      <div className="settings-body">
        {shown === "usage" && <UsageSection isAdmin={admin} />}
        {shown === "agents" && <Agents isAdmin={admin} />}
        {shown === "keys" && <Keys />}
        {shown === "pages" && <Pages isAdmin={admin} item={item} />}
        {shown === "files" && <Files item={item} />}
        {shown === "people" && <People />}
        {shown === "feedback" && <FeedbackSection />}
        {shown === "webhooks" && <Webhooks />}
        {shown === "shares" && <Shares isAdmin={admin} />}
        {shown === "account" && <Account />}
        {shown === "tables" && <Tables isAdmin={admin} item={item} />}
      </div>
    </main>
  );
}
