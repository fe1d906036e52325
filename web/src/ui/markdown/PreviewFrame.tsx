/** A drawing of HTML, SVG or Mermaid, in a frame that has no origin, no network and no rights. Loaded when it is first asked for. */
import { useEffect, useRef, useState } from "react";

import type { PreviewKind, PreviewReport, TextJob } from "../../preview/messages";
import { words } from "../../words";

export const ADDRESS = "/preview";
const MIN_PX = 80;
const MAX_PX = 900;

export default function PreviewFrame({ kind, text, isTall = false }: { kind: PreviewKind; text: string; isTall?: boolean }) {
  const frame = useRef<HTMLIFrameElement>(null);
  const [height, setHeight] = useState<number | null>(null);
  const [isDrawn, setIsDrawn] = useState(false);
  const [problem, setProblem] = useState<string | null>(null);
  useEffect(() => {
    const job: TextJob = { kind, text, isDark: isDark() };
    const onMessage = ({ source, data }: MessageEvent<PreviewReport>) => {
      const target = frame.current?.contentWindow;
      if (!target || source !== target) return;
      // The frame has no origin that could be named. Only the document at this address can be in it: the policy of the page says so.
      if (data.type === "ready") target.postMessage(job, "*");
      else if (data.type === "drawn") {
        setIsDrawn(true);
        setHeight(Math.min(Math.max(Number(data.height) || 0, MIN_PX), MAX_PX));
      } else if (data.type === "failed") setProblem(String(data.reason).slice(0, 500));
    };
    addEventListener("message", onMessage);
    return () => removeEventListener("message", onMessage);
  }, [kind, text]);
  if (problem !== null)
    return (
      <p className="preview-note preview-failed" role="status">
        {words.preview.failed} {problem && <span className="preview-reason">{problem}</span>}
      </p>
    );
  return (
    <>
      <div className={`preview is-${kind}${isTall ? " is-tall" : ""}`} style={kind === "html" || height === null ? undefined : { height }}>
        <iframe ref={frame} data-state={isDrawn ? "drawn" : undefined} sandbox="allow-scripts" src={ADDRESS} title={words.preview.title(words.preview.kinds[kind])} referrerPolicy="no-referrer" />
      </div>
      {kind === "html" && <p className="preview-note">{words.preview.noScripts}</p>}
    </>
  );
}

export function isDark(): boolean {
  const theme = document.documentElement.dataset["theme"];
  return theme === undefined ? matchMedia("(prefers-color-scheme: dark)").matches : theme === "dark";
}
