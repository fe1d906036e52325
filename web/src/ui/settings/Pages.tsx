/** Pages: texts that agents search and cite. Everybody reads them here, admins write them. */
import { useCallback, useEffect, useState } from "react";

import { createPage, deletePage, pages, readPage, replacePage } from "../../effects/requests";
import { pathOf, type Place, type Route } from "../../state/route";
import type { KnowledgePage, PageItem } from "../../wire/types";
import { dateInWords, sizeInWords, words } from "../../words";
import { Icon } from "../Icon";
import { PageText } from "../reading/PageText";
import { BackLink } from "../reading/parts";
import { RouteLink } from "../RouteLink";
import { Field, Loading, More, Refusal, Sure, useListed, useTrying } from "./parts";

const ALL: Route = { page: "settings", section: "pages" };

const pageRoute = (page: PageItem): Route => ({
  ...ALL,
  place: { kind: "page", id: page.id, ...(page.snippet ? { passage: { quote: page.snippet, ...(page.place ? { part: page.place } : {}) } } : {}) },
});

export function Pages({ isAdmin, place }: { isAdmin: boolean; place: Place | undefined }) {
  const [query, setQuery] = useState("");
  const found = useListed(useCallback((cursor: string | null) => pages(query.trim(), cursor), [query]));
  const [edited, setEdited] = useState<KnowledgePage | "new" | null>(null);
  const { refusal, attempt } = useTrying();
  const opened = place?.kind === "page" ? place : null;
  const address = opened ? pathOf({ ...ALL, place: opened }) : "";
  useEffect(() => setEdited(null), [address]);
  if (edited !== null)
    return (
      <PageForm
        page={edited === "new" ? null : edited}
        onDone={() => {
          setEdited(null);
          found.reload();
        }}
      />
    );
  if (opened)
    return (
      <PageText
        id={opened.id}
        passage={opened.passage}
        tools={(page) => (
          <>
            <BackLink route={ALL} />
            {isAdmin && page && (
              <button type="button" className="button" onClick={() => setEdited(page)}>
                {words.settings.edit}
              </button>
            )}
          </>
        )}
      />
    );
  return (
    <>
      <div className="intro">
        <p className="faint">{words.settings.pagesIntro}</p>
        {isAdmin && (
          <button type="button" className="button is-main" onClick={() => setEdited("new")}>
            {words.settings.newPage}
          </button>
        )}
      </div>
      <Field label={words.settings.searchPages} value={query} onChange={setQuery} />
      <Refusal text={refusal} />
      {!found.items && <Loading error={found.error} onRetry={found.reload} />}
      {found.items?.length === 0 && <p className="faint">{query ? words.history.noneFound(query) : words.settings.noPages}</p>}
      <ul className="items">
        {found.items?.map((page) => (
          <li key={page.id} className="item">
            <div className="item-text">
              <RouteLink route={pageRoute(page)}>{page.title}</RouteLink>
              <span className="faint">{page.snippet ?? `${sizeInWords(page.size)} · ${dateInWords(page.updated_at)}`}</span>
            </div>
            {isAdmin && (
              <>
                <button type="button" className="button" onClick={() => void attempt(async () => setEdited(await readPage(page.id)))} aria-label={words.settings.editPage(page.title)}>
                  <Icon name="pencil" />
                </button>
                <Sure
                  label={words.menu.delete}
                  ariaLabel={words.settings.deletePage(page.title)}
                  question={words.settings.deleteSure}
                  onSure={() => void attempt(() => deletePage(page.id)).then(found.reload)}
                />
              </>
            )}
          </li>
        ))}
      </ul>
      <More list={found} label={words.settings.morePages} />
    </>
  );
}

function PageForm({ page, onDone }: { page: KnowledgePage | null; onDone: () => void }) {
  const [title, setTitle] = useState(page?.title ?? "");
  const [content, setContent] = useState(page?.content ?? "");
  const { isTrying, refusal, attempt } = useTrying();
  const save = async () => {
    const body = { title: title.trim(), content };
    if (await attempt(() => (page ? replacePage(page.id, body) : createPage(body)), words.settings.saved)) onDone();
  };
  return (
    <form
      className="card"
      onSubmit={(event) => {
        event.preventDefault();
        void save();
      }}
    >
      <h2>{page ? words.settings.editPage(page.title) : words.settings.newPage}</h2>
      <Field label={words.settings.pageTitle} value={title} onChange={setTitle} isRequired />
      <Field label={words.settings.pageContent} rows={16} value={content} onChange={setContent} />
      <Refusal text={refusal} />
      <div className="form-foot">
        <button type="button" className="button" onClick={onDone}>
          {words.cancel}
        </button>
        <button type="submit" className="button is-main" disabled={isTrying || !title.trim()}>
          {isTrying ? words.saving : words.save}
        </button>
      </div>
    </form>
  );
}
