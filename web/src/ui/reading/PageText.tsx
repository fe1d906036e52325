/** A page to be read: its Markdown, with the cited passage marked. */
import { type ReactNode, useCallback, useRef } from "react";

import { readPage } from "../../effects/requests";
import type { Passage } from "../../state/route";
import type { KnowledgePage } from "../../wire/types";
import { dateInWords, words } from "../../words";
import { Markdown } from "../markdown/Markdown";
import { useLoaded } from "../settings/parts";
import { Gone, Heading, Note } from "./parts";
import { usePassage } from "./usePassage";

interface Props {
  id: string;
  passage?: Passage | undefined;
  tools: (page: KnowledgePage | null) => ReactNode;
}

export function PageText({ id, passage, tools }: Props) {
  const loaded = useLoaded(useCallback(() => readPage(id), [id]));
  const text = useRef<HTMLDivElement>(null);
  const page = loaded.value?.id === id ? loaded.value : null;
  const found = usePassage(text, passage, page !== null);
  return (
    <>
      <Heading kind="page" title={page?.title ?? null} about={page ? words.reading.changed(dateInWords(page.updated_at)) : null} tools={tools(page)} />
      {!page && <Gone loaded={loaded} gone={words.reading.pageGone} />}
      {found === "nowhere" && <Note text={words.reading.passageGone} />}
      {found === "heading" && <Note text={words.reading.passageChanged} />}
      {page && (
        <div ref={text} className="reading-text">
          {page.content.trim() ? <Markdown text={withoutTitle(page)} /> : <p className="faint">{words.reading.emptyPage}</p>}
        </div>
      )}
    </>
  );
}

/** Many pages begin with their own title, which stands above already. */
function withoutTitle({ title, content }: KnowledgePage): string {
  const first = /^\s*#[ \t]+([^\n]+?)[ \t]*#*[ \t]*(?:\n|$)/.exec(content);
  return first?.[1] === title ? content.slice(first[0].length) : content;
}
