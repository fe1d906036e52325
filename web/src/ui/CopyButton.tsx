import { useEffect, useRef, useState } from "react";

import { words } from "../words";
import { Icon } from "./Icon";

/** Copies a text and confirms it for a moment. */
export function CopyButton({ text, label }: { text: string | (() => string); label: string }) {
  const [isCopied, setIsCopied] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  useEffect(() => () => clearTimeout(timer.current ?? undefined), []);
  const copy = async () => {
    await writeText(typeof text === "string" ? text : text());
    setIsCopied(true);
    clearTimeout(timer.current ?? undefined);
    timer.current = setTimeout(() => setIsCopied(false), 1_600);
  };
  return (
    <button type="button" className="tool" onClick={() => void copy()} aria-label={isCopied ? words.copied : label} title={label}>
      <Icon name={isCopied ? "check" : "copy"} />
    </button>
  );
}

/** Without HTTPS, browsers offer the clipboard API only on localhost. Elsewhere a selection is copied. */
async function writeText(text: string): Promise<void> {
  if (navigator.clipboard) {
    await navigator.clipboard.writeText(text).catch(() => writeBySelection(text));
    return;
  }
  writeBySelection(text);
}

function writeBySelection(text: string): void {
  const area = document.createElement("textarea");
  area.value = text;
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  document.execCommand("copy");
  area.remove();
}
