/** Files of a message that is being written: the button that adds them, the list of them, and files that are pasted. */
import { type ClipboardEvent, useRef } from "react";

import type { FileRef } from "@turnkeep/client";
import type { FileUpload } from "../../state/state";
import { sizeInWords, words } from "../../words";
import { useSelect, useServices } from "../context";
import { Icon } from "../Icon";
import { isPicture, Preview } from "../thread/Files";

interface ButtonProps {
  onFiles: (files: readonly File[]) => void;
  isDisabled?: boolean;
}

/** The button that attaches files. Its label says how many files are allowed and how large they may be. */
export function AttachButton({ onFiles, isDisabled = false }: ButtonProps) {
  const me = useSelect((state) => state.me);
  const picker = useRef<HTMLInputElement>(null);
  const label = `${words.composer.attach}. ${me ? words.composer.limits(me.max_files_per_message, sizeInWords(me.max_file_bytes)) : ""}`;
  return (
    <>
      <input
        ref={picker}
        className="visually-hidden"
        type="file"
        multiple
        tabIndex={-1}
        aria-hidden="true"
        onChange={(event) => {
          onFiles([...(event.target.files ?? [])]);
          event.target.value = "";
        }}
      />
      <button type="button" className="tool" onClick={() => picker.current?.click()} disabled={isDisabled} aria-label={label} title={label}>
        <Icon name="clip" />
      </button>
    </>
  );
}

interface ListProps {
  uploads: readonly FileUpload[];
  kept?: readonly FileRef[];
  onRemove?: (file: FileRef) => void;
}

/** The files of a message: those that it already has, then those that are being uploaded, with progress. */
export function UploadList({ uploads: attached, kept = [], onRemove }: ListProps) {
  const { uploads } = useServices();
  if (!attached.length && !kept.length) return null;
  return (
    <ul className="uploads" aria-label={words.thread.attachments}>
      {kept.map((file) => (
        <li key={file.file_id} className="chip" data-state="kept">
          {isPicture(file.mime_type) ? <Preview file={file} className="thumb" /> : <Icon name="file" />}
          <span className="chip-name" dir="auto">
            {file.name}
          </span>
          <span className="chip-size">{sizeInWords(file.size)}</span>
          <RemoveFile name={file.name} onRemove={() => onRemove?.(file)} />
        </li>
      ))}
      {attached.map((one) => {
        const percent = Math.round(one.progress * 100);
        const isDone = one.stored !== null;
        return (
          <li key={one.key} className={one.error ? "chip is-failure" : "chip"} data-state={isDone ? "done" : one.error ? "failed" : "uploading"}>
            <Thumb upload={one} />
            <span className="chip-name" dir="auto">
              {one.name}
            </span>
            <span className="chip-size">{isDone || one.error ? sizeInWords(one.size) : `${percent} %`}</span>
            {!isDone && !one.error && <progress max={100} value={percent} aria-label={words.composer.uploading(one.name, percent)} />}
            {one.error && (
              <span className="chip-error" role="alert">
                {one.error}
              </span>
            )}
            {one.error && (
              <button type="button" className="link" onClick={() => uploads.retry(one.key)} aria-label={words.composer.retryFile(one.name)}>
                {words.retry}
              </button>
            )}
            {isDone && (
              <span className="visually-hidden" role="status">
                {words.composer.uploaded(one.name)}
              </span>
            )}
            <RemoveFile name={one.name} onRemove={() => uploads.detach(one.key)} />
          </li>
        );
      })}
    </ul>
  );
}

function Thumb({ upload }: { upload: FileUpload }) {
  if (upload.preview) return <img className="thumb" src={upload.preview} alt="" />;
  return upload.stored && isPicture(upload.mime_type) ? <Preview file={upload.stored} className="thumb" /> : <Icon name="file" />;
}

function RemoveFile({ name, onRemove }: { name: string; onRemove: () => void }) {
  return (
    <button type="button" className="tool is-small" onClick={onRemove} aria-label={words.composer.removeFile(name)}>
      <Icon name="close" />
    </button>
  );
}

/**
 * The files of a paste; none if the paste means text. Spreadsheets and Office add a picture to their formatted text: the
 * user wants the text. File managers add the names of the files as plain text: the user wants the files.
 */
export function pastedFiles(clipboard: Pick<DataTransfer, "files" | "getData">): File[] {
  const isFormatted = clipboard.getData("text/html") !== "" || clipboard.getData("text/rtf") !== "";
  return isFormatted && clipboard.getData("text/plain") ? [] : [...clipboard.files];
}

/** Attaches pasted files. A paste of text stays a paste of text. */
export const pasteHandler = (attach: (files: readonly File[]) => void) => (event: ClipboardEvent) => {
  const pasted = pastedFiles(event.clipboardData);
  if (!pasted.length) return;
  event.preventDefault();
  attach(pasted);
};
