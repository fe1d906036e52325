/** A page: its Markdown, with the cited passage marked. */
import { type ReactNode, useCallback, useRef } from "react";

import type { KnowledgePage } from "@turnkeep/client";
import { readPage } from "../../effects/requests";
import type { Passage } from "../../state/route";
import { dateInWords, words } from "../../words";
import { Markdown } from "../markdown/Markdown";
import { useLoaded } from "../requestState";
import { usePassage } from "./citedPassage";
import { LoadProblem, SourceHeader, SourceNote } from "./SourceHeader";

interface Props {
  id: string;
  passage?: Passage | undefined;
  tools: (page: KnowledgePage | null) => ReactNode;
}

export function PageView({ id, passage, tools }: Props) {
  const loaded = useLoaded(useCallback(() => readPage(id), [id]));
  const text = useRef<HTMLDivElement>(null);
  const page = loaded.value?.id === id ? loaded.value : null;
  const found = usePassage(text, passage, page !== null);
  return (
    <>
      <SourceHeader kind="page" title={page?.title ?? null} about={page ? words.source.changed(dateInWords(page.updated_at)) : null} tools={tools(page)} />
      {!page && <LoadProblem loaded={loaded} missing={words.source.pageGone} />}
      {found === "nowhere" && <SourceNote text={words.source.passageGone} />}
      {found === "heading" && <SourceNote text={words.source.passageChanged} />}
      {page && (
        <div ref={text} className="panel-text">
          {page.content.trim() ? <Markdown text={withoutTitle(page)} /> : <p className="faint">{words.source.emptyPage}</p>}
        </div>
      )}
    </>
  );
}

/** The content without its title: many pages begin with it, and the header already shows it. */
function withoutTitle({ title, content }: KnowledgePage): string {
  const first = /^\s*#[ \t]+([^\n]+?)[ \t]*#*[ \t]*(?:\n|$)/.exec(content);
  return first?.[1] === title ? content.slice(first[0].length) : content;
}
