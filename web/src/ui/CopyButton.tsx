import { type RefObject, useEffect, useRef, useState } from "react";

import { words } from "../words";
import { Icon } from "./Icon";

interface Props {
  text: string | (() => string | Promise<string>);
  label: string;
  /** The same with its formatting, as HTML, for programs that take it. It is given the button. */
  html?: (button: Element) => Promise<string>;
}

/** Copies a text and confirms it for a moment. */
export function CopyButton({ text, label, html }: Props) {
  const button = useRef<HTMLButtonElement>(null);
  const [isCopied, setIsCopied] = useState(false);
  const timer = useRef<ReturnType<typeof setTimeout> | null>(null);
  useEffect(() => () => clearTimeout(timer.current ?? undefined), []);
  const copy = async () => {
    await write(typeof text === "string" ? text : text(), formatted(html, button));
    setIsCopied(true);
    clearTimeout(timer.current ?? undefined);
    timer.current = setTimeout(() => setIsCopied(false), 1_600);
  };
  return (
    <button ref={button} type="button" className="tool" onClick={() => void copy()} aria-label={isCopied ? words.copied : label} title={label}>
      <Icon name={isCopied ? "check" : "copy"} />
    </button>
  );
}

const formatted = (html: Props["html"], { current: button }: RefObject<Element | null>): Promise<string> | null => (html && button ? html(button) : null);

/** Without HTTPS, browsers offer the clipboard API only on localhost. Elsewhere a selection is copied. */
async function write(text: string | Promise<string>, html: Promise<string> | null): Promise<void> {
  const clipboard = navigator.clipboard as Clipboard | undefined;
  try {
    if (clipboard && typeof ClipboardItem !== "undefined") {
      // Promises, because Safari allows a copy only at once after the click.
      const item = { "text/plain": blobOf(text, "text/plain"), ...(html ? { "text/html": blobOf(html, "text/html") } : {}) };
      return await clipboard.write([new ClipboardItem(item)]);
    }
    if (clipboard) return await clipboard.writeText(await text);
  } catch {
    // The browser refuses the clipboard: the old way is left.
  }
  return writeBySelection(await text, html && (await html));
}

const blobOf = async (text: string | Promise<string>, type: string): Promise<Blob> => new Blob([await text], { type });

function writeBySelection(text: string, html: string | null): void {
  const area = document.createElement("textarea");
  area.value = text || " ";
  area.className = "visually-hidden";
  document.body.append(area);
  area.select();
  const onCopy = (event: ClipboardEvent) => {
    event.preventDefault();
    event.clipboardData?.setData("text/plain", text);
    if (html !== null) event.clipboardData?.setData("text/html", html);
  };
  document.addEventListener("copy", onCopy);
  document.execCommand("copy");
  document.removeEventListener("copy", onCopy);
  area.remove();
}
