/** Pages: texts that agents search and cite. */
import { useCallback, useState } from "react";

import { createPage, deletePage, pages, readPage, replacePage } from "../../effects/settings";
import type { KnowledgePage } from "../../wire/types";
import { dateInWords, sizeInWords, words } from "../../words";
import { Icon } from "../Icon";
import { Field, Loading, Refusal, Sure, useLoaded, useTrying } from "./parts";

export function Pages({ isAdmin }: { isAdmin: boolean }) {
  const [query, setQuery] = useState("");
  const found = useLoaded(useCallback(() => pages(query.trim()), [query]));
  const [edited, setEdited] = useState<KnowledgePage | "new" | null>(null);
  const { refusal, attempt } = useTrying();
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
      {!found.value && <Loading error={found.error} onRetry={found.reload} />}
      {found.value && !found.value.data.length && <p className="faint">{query ? words.history.noneFound(query) : words.settings.noPages}</p>}
      <ul className="items">
        {found.value?.data.map((page) => (
          <li key={page.id} className="item">
            <div className="item-text">
              <strong>{page.title}</strong>
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
