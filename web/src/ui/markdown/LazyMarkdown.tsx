/** Markdown, drawn by code that is loaded when it is needed. Until then, or if it cannot be loaded, the text stands as it is. */
import { useEffect, useState } from "react";

import type { Markdown as DrawnMarkdown, MarkdownProps } from "./Markdown";

let Drawn: typeof DrawnMarkdown | null = null;

/** Load the code. Call it where an answer will soon be shown, so that nobody sees the plain text. */
export async function loadMarkdown(): Promise<void> {
  if (Drawn === null) Drawn = (await import("./Markdown")).Markdown;
}

export function Markdown(props: MarkdownProps) {
  const [, setIsLoaded] = useState(Drawn !== null);
  useEffect(() => {
    if (Drawn === null)
      loadMarkdown().then(
        () => setIsLoaded(true),
        () => undefined,
      );
  }, []);
  if (Drawn !== null) return <Drawn {...props} />;
  return (
    <div className="prose is-plain" dir="auto">
      {props.text}
    </div>
  );
}
