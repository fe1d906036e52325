/** Pages, which agents search and cite. Every member can read them here; admins write them. */
import { useCallback, useEffect, useState } from "react";

import type { KnowledgePage, PageItem } from "@turnkeep/client";
import { createPage, deletePage, pages, readPage, replacePage } from "../../effects/requests";
import { pathOf, type KnowledgeItem, type Route } from "../../state/route";
import { dateInWords, sizeInWords, words } from "../../words";
import { ConfirmButton, Field } from "../forms";
import { Icon } from "../Icon";
import { ErrorText, LoadStatus, MoreButton, useLoadedList, useSubmit, useUnsaved } from "../requestState";
import { RouteLink } from "../RouteLink";
import { PageView } from "../source/PageView";
import { BackLink } from "../source/SourceHeader";

const ALL = { page: "settings", section: "pages" } as const satisfies Route;

const pageRoute = (page: PageItem): Route => ({
  ...ALL,
  item: { kind: "page", id: page.id, ...(page.snippet ? { passage: { quote: page.snippet, ...(page.place ? { part: page.place } : {}) } } : {}) },
});

export function Pages({ isAdmin, item }: { isAdmin: boolean; item: KnowledgeItem | undefined }) {
  const [query, setQuery] = useState("");
  const found = useLoadedList(useCallback((cursor: string | null) => pages(query.trim(), cursor), [query]));
  const [edited, setEdited] = useState<KnowledgePage | "new" | null>(null);
  const { error, submit } = useSubmit();
  const opened = item?.kind === "page" ? item : null;
  const address = opened ? pathOf({ ...ALL, item: opened }) : "";
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
      <PageView
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
      <ErrorText text={error} />
      {!found.items && <LoadStatus error={found.error} onRetry={found.reload} />}
      {found.items?.length === 0 && <p className="faint">{query ? words.conversations.noneFound(query) : words.settings.noPages}</p>}
      <ul className="items">
        {found.items?.map((page) => (
          <li key={page.id} className="item">
            <div className="item-text">
              <RouteLink route={pageRoute(page)}>{page.title}</RouteLink>
              <span className="faint" dir="auto">{page.snippet ?? `${sizeInWords(page.size)} · ${dateInWords(page.updated_at)}`}</span>
            </div>
            {isAdmin && (
              <>
                <button type="button" className="button" onClick={() => void submit(async () => setEdited(await readPage(page.id)))} aria-label={words.settings.editPage(page.title)}>
                  <Icon name="pencil" />
                </button>
                <ConfirmButton
                  label={words.menu.delete}
                  ariaLabel={words.settings.deletePage(page.title)}
                  question={words.settings.deleteSure}
                  onConfirm={() => void submit(() => deletePage(page.id)).then(found.reload)}
                />
              </>
            )}
          </li>
        ))}
      </ul>
      <MoreButton list={found} label={words.settings.morePages} />
    </>
  );
}

function PageForm({ page, onDone }: { page: KnowledgePage | null; onDone: () => void }) {
  const [title, setTitle] = useState(page?.title ?? "");
  const [content, setContent] = useState(page?.content ?? "");
  const { isSubmitting, error, submit } = useSubmit();
  const leave = useUnsaved(title !== (page?.title ?? "") || content !== (page?.content ?? ""));
  const save = async () => {
    const body = { title: title.trim(), content };
    if (await submit(() => (page ? replacePage(page.id, body) : createPage(body)), words.settings.saved)) onDone();
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
      <ErrorText text={error} />
      <div className="form-foot">
        <button type="button" className="button" onClick={() => leave(onDone)}>
          {words.cancel}
        </button>
        <button type="submit" className="button is-main" disabled={isSubmitting || !title.trim()}>
          {isSubmitting ? words.saving : words.save}
        </button>
      </div>
    </form>
  );
}
