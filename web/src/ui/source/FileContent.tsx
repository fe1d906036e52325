/** What a file says: as it is meant to look (a table, a text with headings, pages, a web page, a picture), or as plain text. */
import { lazy, Suspense, useCallback, useMemo, useRef, useState } from "react";

import type { StoredFile } from "@turnkeep/client";
import { readBeginning, readText } from "../../effects/requests";
import type { Passage } from "../../state/route";
import { parseCsv } from "../../state/csv";
import { sizeInWords, words } from "../../words";
import { Code, Markdown } from "../markdown/Markdown";
import { useLoaded } from "../requestState";
import { usePassage } from "./citedPassage";
import { SourceNote } from "./SourceHeader";

const PreviewFrame = lazy(() => import("../markdown/PreviewFrame"));
const PdfFrame = lazy(() => import("./PdfFrame"));

/** More of a file is not drawn here. It can be downloaded. */
const MAX_BYTES = 400_000;
const MAX_ROWS = 500;

type TextLook = "markdown" | "csv" | "html" | "svg" | "code";
type Look = TextLook | "pdf";

/** How a file can be drawn, by its type or else by the end of its name; null if there is only its text. */
export function lookOf({ name, mime_type: type }: Pick<StoredFile, "name" | "mime_type">): Look | null {
  const ending = /\.([a-z0-9]+)$/i.exec(name)?.[1]?.toLowerCase() ?? "";
  if (type === "application/pdf" || ending === "pdf") return "pdf";
  if (type === "text/html" || ending === "html" || ending === "htm") return "html";
  if (type === "image/svg+xml" || ending === "svg") return "svg";
  if (type === "text/markdown" || ending === "md" || ending === "markdown") return "markdown";
  if (type === "text/csv" || type === "text/tab-separated-values" || ending === "csv" || ending === "tsv") return "csv";
  return CODE.has(ending) ? "code" : null;
}

const CODE: ReadonlySet<string> = new Set(["json", "yaml", "yml", "toml", "py", "js", "ts", "tsx", "jsx", "css", "xml", "sql", "sh", "go", "rs", "java", "c", "cpp", "rb", "php"]);

export function FileContent({ file, passage }: { file: StoredFile; passage: Passage | undefined }) {
  const look = lookOf(file);
  // A cited passage is searched in the plain text.
  const [isPlain, setIsPlain] = useState(passage !== undefined);
  if (look === null) return <PlainText id={file.id} passage={passage} />;
  const choice = (isText: boolean, label: string) => (
    <button type="button" className="code-switch" aria-pressed={isPlain === isText} onClick={() => setIsPlain(isText)}>
      {label}
    </button>
  );
  return (
    <>
      <div className="file-looks" role="group" aria-label={words.files.look}>
        {choice(false, words.preview.show)}
        {choice(true, words.files.plain)}
      </div>
      {isPlain ? <PlainText id={file.id} passage={passage} /> : <Drawn file={file} look={look} />}
    </>
  );
}

function Drawn({ file, look }: { file: StoredFile; look: Look }) {
  if (look !== "pdf") return <DrawnText file={file} look={look} />;
  return (
    <Suspense fallback={<p className="faint">{words.preview.loading}</p>}>
      <PdfFrame file={file} />
    </Suspense>
  );
}

function DrawnText({ file, look }: { file: StoredFile; look: TextLook }) {
  const loaded = useLoaded(useCallback(() => readBeginning(file.id, MAX_BYTES), [file.id]));
  const text = loaded.value;
  if (text === null) return loaded.error === null ? <p className="faint">{words.source.readingFile}</p> : <SourceNote text={loaded.error} />;
  return (
    <>
      {file.size > MAX_BYTES && <SourceNote text={words.files.beginning(sizeInWords(MAX_BYTES))} />}
      <Look text={text} look={look} name={file.name} />
    </>
  );
}

function Look({ text, look, name }: { text: string; look: TextLook; name: string }) {
  switch (look) {
    case "markdown":
      return (
        <div className="panel-text">
          <Markdown text={text} />
        </div>
      );
    case "csv":
      return <CsvTable text={text} name={name} />;
    case "code":
      return (
        <div className="prose">
          <Code text={text} language={/\.([a-z0-9]+)$/i.exec(name)?.[1]?.toLowerCase() ?? ""} isOpen={false} />
        </div>
      );
    case "html":
    case "svg":
      return (
        <div className="file-frame">
          <Suspense fallback={<p className="faint">{words.preview.loading}</p>}>
            <PreviewFrame kind={look} text={text} isTall />
          </Suspense>
        </div>
      );
    default:
      return look satisfies never;
  }
}

function CsvTable({ text, name }: { text: string; name: string }) {
  const rows = useMemo(() => parseCsv(text), [text]);
  const [head = [], ...body] = rows;
  if (!head.length) return <p className="faint">{words.settings.noRows}</p>;
  return (
    <>
      {body.length > MAX_ROWS && <SourceNote text={words.files.firstRows(MAX_ROWS)} />}
      <div className="prose">
        <div className="table is-rows" role="region" aria-label={name} tabIndex={0}>
          <table>
            <thead>
              <tr>
                {head.map((cell, at) => (
                  <th key={at} scope="col">
                    {cell}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {body.slice(0, MAX_ROWS).map((row, at) => (
                <tr key={at}>
                  {head.map((_, place) => (
                    <td key={place}>{row[place] ?? ""}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      </div>
    </>
  );
}

/** The text that the tools search and the model reads, with the cited passage marked; of a PDF, page by page. */
function PlainText({ id, passage }: { id: string; passage: Passage | undefined }) {
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
