/** A file: its text with the cited passage marked, and a link to download it. */
import { type ReactNode, useCallback, useMemo, useRef } from "react";

import { readFile, readText } from "../../effects/requests";
import type { Passage } from "../../state/route";
import { sizeInWords, words } from "../../words";
import { Icon } from "../Icon";
import { useLoaded } from "../requestState";
import { isPicture, Preview, useDownload } from "../thread/Files";
import { usePassage } from "./citedPassage";
import { LoadProblem, SourceHeader, SourceNote } from "./SourceHeader";

interface Props {
  id: string;
  passage?: Passage | undefined;
  tools: ReactNode;
}

export function FileView({ id, passage, tools }: Props) {
  const loaded = useLoaded(useCallback(() => readFile(id), [id]));
  const file = loaded.value?.id === id ? loaded.value : null;
  const link = useDownload(id, file?.name ?? "");
  const about = file ? [passage?.part, sizeInWords(file.size)].filter(Boolean).join(" · ") : null;
  return (
    <>
      <SourceHeader kind="file" title={file?.name ?? null} about={about} tools={tools} />
      {!file && <LoadProblem loaded={loaded} missing={words.source.fileGone} />}
      {file && (
        <p>
          <a className="button is-link" {...link}>
            <Icon name="download" />
            {words.source.download}
          </a>
        </p>
      )}
      {file && isPicture(file.mime_type) && (
        <div className="panel-picture">
          <Preview file={{ file_id: file.id, name: file.name, mime_type: file.mime_type, size: file.size }} />
        </div>
      )}
      {file && !isPicture(file.mime_type) && <FileContent id={id} passage={passage} />}
    </>
  );
}

function FileContent({ id, passage }: { id: string; passage: Passage | undefined }) {
  const loaded = useLoaded(useCallback(() => readText(id), [id]));
  const text = useRef<HTMLDivElement>(null);
  const content = loaded.value?.file_id === id ? loaded.value : null;
  const parts = useMemo(() => content?.text.split("\f") ?? [], [content]);
  const found = usePassage(text, passage, content !== null);
  if (!content)
    return loaded.error === null ? <p className="faint">{words.source.readingFile}</p> : <SourceNote text={loaded.error} />;
  return (
    <>
      {found === "nowhere" && <SourceNote text={words.source.passageGone} />}
      <div ref={text} className="panel-text panel-plain">
        {parts.map((part, at) => (
          <section key={at}>
            {content.unit && <h3>{words.source.part(content.unit, at + 1)}</h3>}
            <pre>{part.trim()}</pre>
          </section>
        ))}
      </div>
    </>
  );
}
