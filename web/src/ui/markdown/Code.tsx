/** A code block: its language, a button that copies it, and colours once the highlighter has been loaded. */
import { memo, type ReactNode, useEffect, useState } from "react";

import { words } from "../../words";
import { CopyButton } from "../CopyButton";

type Painted = { language: string; text: string; nodes: ReactNode };

/** Beyond this, colours cost more than they tell. */
const MOST_CHARS = 60_000;
/** A block that still grows is painted again only after it has paused. */
const PAUSE_MS = 120;

export const Code = memo(function Code({ text, language, isOpen }: { text: string; language: string; isOpen: boolean }) {
  const painted = usePainted(text, language, isOpen);
  return (
    <figure className="code">
      <figcaption>
        <span>{language || "text"}</span>
        <CopyButton text={text} label={words.thread.copyCode} />
      </figcaption>
      <pre tabIndex={0} aria-label={language || "code"} role="region">
        <code>
          {painted.nodes}
          {painted.rest}
        </code>
      </pre>
    </figure>
  );
});

/** The code, in colours as far as it is painted; what has come since is plain until it is. */
function usePainted(text: string, language: string, isOpen: boolean): { nodes: ReactNode; rest: string } {
  const [painted, setPainted] = useState<Painted | null>(null);
  useEffect(() => {
    if (!language || text.length > MOST_CHARS) return undefined;
    let isCurrent = true;
    const timer = setTimeout(() => {
      void import("./highlight").then(({ paint }) => {
        const nodes = isCurrent ? paint(text, language) : null;
        if (nodes !== null) setPainted({ language, text, nodes });
      });
    }, isOpen ? PAUSE_MS : 0);
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [text, language, isOpen]);
  if (!painted || painted.language !== language || !text.startsWith(painted.text)) return { nodes: null, rest: text };
  return { nodes: painted.nodes, rest: text.slice(painted.text.length) };
}
