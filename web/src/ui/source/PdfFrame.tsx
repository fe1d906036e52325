/** A PDF as pages, drawn in the frame of a preview, which has no origin, no network and no rights. Loaded when the first PDF is shown. */
import { useCallback, useEffect, useRef, useState } from "react";

import type { StoredFile } from "@turnkeep/client";
import { readPdf, readPdfPart, readPdfWorker } from "../../effects/pdf";
import type { PdfJob, PdfPart, PreviewReport } from "../../preview/messages";
import { sizeInWords, words } from "../../words";
import { ADDRESS, isDark } from "../markdown/PreviewFrame";
import { useLoaded } from "../requestState";
import { SourceNote } from "./SourceHeader";

/** The file is in memory as a whole, so a larger one is only read as text. */
const MAX_BYTES = 64 * 1024 * 1024;
const MAX_PAGES = 2_000;
const MAX_FRAME_PX = 10_000_000;

export default function PdfFrame({ file }: { file: StoredFile }) {
  return file.size > MAX_BYTES ? <SourceNote text={words.files.isTooLarge(sizeInWords(MAX_BYTES))} /> : <Loaded file={file} />;
}

function Loaded({ file }: { file: StoredFile }) {
  const loaded = useLoaded(useCallback(() => Promise.all([readPdf(file.id), readPdfWorker()]), [file.id]));
  if (loaded.error !== null) return <SourceNote text={loaded.error} />;
  if (loaded.value === null) return <p className="faint">{words.source.readingFile}</p>;
  const [bytes, worker] = loaded.value;
  return <Pages name={file.name} bytes={bytes} worker={worker} />;
}

function Pages({ name, bytes, worker }: { name: string; bytes: Blob; worker: ArrayBuffer }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [height, setHeight] = useState<number | null>(null);
  const [pages, setPages] = useState(0);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    const onMessage = ({ source, data }: MessageEvent<PreviewReport>) => {
      const target = frame.current?.contentWindow;
      if (!target || source !== target) return;
      // The frame has no origin that could be named. Only the document at this address can be in it: the policy of the page says so.
      const tell = (message: PdfJob | PdfPart, given: Transferable[] = []) => target.postMessage(message, "*", given);
      if (data.type === "ready") void jobOf(bytes, worker).then((job) => tell(job, [job.file]));
      else if (data.type === "wanted") void readPdfPart(String(data.name)).then((part) => tell({ kind: "part", name: data.name, bytes: part }));
      else if (data.type === "opened") setPages(Number(data.pages) || 0);
      else if (data.type === "drawn") setHeight(Math.min(Number(data.height) || 0, MAX_FRAME_PX));
      else if (data.type === "failed") setProblem(data.reason === "locked" ? words.files.isLocked : words.files.isBroken);
    };
    addEventListener("message", onMessage);
    return () => removeEventListener("message", onMessage);
  }, [bytes, worker]);
  if (problem !== null) return <SourceNote text={problem} />;
  return (
    <>
      {pages > MAX_PAGES && <SourceNote text={words.files.firstPages(MAX_PAGES)} />}
      {height === null && <p className="faint">{words.preview.loading}</p>}
      <div className="file-frame is-pdf" style={height === null ? undefined : { height }}>
        <iframe ref={frame} data-state={height === null ? undefined : "drawn"} sandbox="allow-scripts" src={ADDRESS} title={words.preview.title(name)} referrerPolicy="no-referrer" />
      </div>
    </>
  );
}

async function jobOf(bytes: Blob, worker: ArrayBuffer): Promise<PdfJob> {
  const label = words.files.page("{at}", "{of}");
  return { kind: "pdf", file: await bytes.arrayBuffer(), worker, isDark: isDark(), language: document.documentElement.lang, maxPages: MAX_PAGES, label, failed: words.preview.failed };
}
