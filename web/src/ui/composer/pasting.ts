import type { ClipboardEvent } from "react";

/**
 * The files of a paste that is nothing but files. Spreadsheets and Office add a picture to their formatted text: there the
 * text is meant. File managers add the bare names of the files: there the files are.
 */
export function pastedFiles(carried: Pick<DataTransfer, "files" | "getData">): File[] {
  const isFormatted = carried.getData("text/html") !== "" || carried.getData("text/rtf") !== "";
  return isFormatted && carried.getData("text/plain") ? [] : [...carried.files];
}

/** Attaches what is pasted, where that is files. */
export const pasting = (attach: (files: readonly File[]) => void) => (event: ClipboardEvent) => {
  const pasted = pastedFiles(event.clipboardData);
  if (!pasted.length) return;
  event.preventDefault();
  attach(pasted);
};
