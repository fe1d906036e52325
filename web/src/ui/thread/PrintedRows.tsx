/** All loaded messages, drawn only while the browser prints. The list on the screen draws only those in view. */
import { useEffect, useState } from "react";
import { flushSync } from "react-dom";

import type { MessageRow } from "@turnkeep/client";
import { words } from "../../words";
import { ThreadRow } from "./ThreadRow";

export function PrintedRows({ rows, threadId }: { rows: readonly MessageRow[]; threadId: string }) {
  const [isPrinting, setIsPrinting] = useState(false);
  useEffect(() => {
    // The browser prints as soon as the event has been handled, so the rows must be in the document by then.
    const begin = () => flushSync(() => setIsPrinting(true));
    const end = () => setIsPrinting(false);
    addEventListener("beforeprint", begin);
    addEventListener("afterprint", end);
    return () => {
      removeEventListener("beforeprint", begin);
      removeEventListener("afterprint", end);
    };
  }, []);
  if (!isPrinting) return null;
  return (
    <div className="printed">
      {rows.map((row) => (
        <div key={row.key} className="row">
          {row.kind === "older" ? <p className="older">{words.thread.printedPart}</p> : <ThreadRow row={row} threadId={threadId} isBusy={false} />}
        </div>
      ))}
    </div>
  );
}
