/** A file to be read: what it says, as plain text, with the cited passage marked; and the file itself to download. */
import { type ReactNode, useCallback, useMemo, useRef } from "react";

import { readFile, readText } from "../../effects/requests";
import type { Passage } from "../../state/route";
import { fileContent } from "../../wire/addresses";
import { sizeInWords, words } from "../../words";
import { Icon } from "../Icon";
import { useLoaded } from "../settings/parts";
import { isPicture, Preview } from "../thread/Files";
import { Gone, Heading, Note } from "./parts";
import { usePassage } from "./usePassage";

interface Props {
  id: string;
  passage?: Passage | undefined;
  tools: ReactNode;
}

export function FileText({ id, passage, tools }: Props) {
  const loaded = useLoaded(useCallback(() => readFile(id), [id]));
  const file = loaded.value?.id === id ? loaded.value : null;
  const about = file ? [passage?.part, sizeInWords(file.size)].filter(Boolean).join(" · ") : null;
  return (
    <>
      <Heading kind="file" title={file?.name ?? null} about={about} tools={tools} />
      {!file && <Gone loaded={loaded} gone={words.reading.fileGone} />}
      {file && (
        <p>
          <a className="button is-link" href={fileContent(file.id)} download={file.name}>
            <Icon name="download" />
            {words.reading.download}
          </a>
        </p>
      )}
      {file && isPicture(file.mime_type) && (
        <div className="reading-picture">
          <Preview file={{ file_id: file.id, name: file.name, mime_type: file.mime_type, size: file.size }} />
        </div>
      )}
      {file && !isPicture(file.mime_type) && <Words id={id} passage={passage} />}
    </>
  );
}

function Words({ id, passage }: { id: string; passage: Passage | undefined }) {
  const loaded = useLoaded(useCallback(() => readText(id), [id]));
  const text = useRef<HTMLDivElement>(null);
  const said = loaded.value?.file_id === id ? loaded.value : null;
  const parts = useMemo(() => said?.text.split("\f") ?? [], [said]);
  const found = usePassage(text, passage, said !== null);
  if (!said)
    return loaded.error === null ? <p className="faint">{words.reading.readingFile}</p> : <Note text={loaded.error} />;
  return (
    <>
      {found === "nowhere" && <Note text={words.reading.passageGone} />}
      <div ref={text} className="reading-text reading-plain">
        {parts.map((part, at) => (
          <section key={at}>
            {said.unit && <h3>{words.reading.part(said.unit, at + 1)}</h3>}
            <pre>{part.trim()}</pre>
          </section>
        ))}
      </div>
    </>
  );
}
