/** Files on their way into a message, each with its progress, after those that it has already. */
import type { Attaching } from "../../state/state";
import type { FileRef } from "../../wire/types";
import { sizeInWords, words } from "../../words";
import { useServices } from "../context";
import { Icon } from "../Icon";
import { isPicture, Preview } from "../thread/Files";

interface Props {
  attaching: readonly Attaching[];
  kept?: readonly FileRef[];
  onDrop?: (file: FileRef) => void;
}

export function AttachingList({ attaching, kept = [], onDrop }: Props) {
  const { uploads } = useServices();
  if (!attaching.length && !kept.length) return null;
  return (
    <ul className="attaching" aria-label={words.thread.attachments}>
      {kept.map((file) => (
        <li key={file.file_id} className="chip" data-state="kept">
          {isPicture(file.mime_type) ? <Preview file={file} className="thumb" /> : <Icon name="file" />}
          <span className="chip-name">{file.name}</span>
          <span className="chip-size">{sizeInWords(file.size)}</span>
          <RemoveFile name={file.name} onRemove={() => onDrop?.(file)} />
        </li>
      ))}
      {attaching.map((one) => {
        const percent = Math.round(one.progress * 100);
        const isDone = one.stored !== null;
        return (
          <li key={one.key} className={one.error ? "chip is-failure" : "chip"} data-state={isDone ? "done" : one.error ? "failed" : "uploading"}>
            {one.preview ? <img className="thumb" src={one.preview} alt="" /> : <Icon name="file" />}
            <span className="chip-name">{one.name}</span>
            <span className="chip-size">{isDone || one.error ? sizeInWords(one.size) : `${percent} %`}</span>
            {!isDone && !one.error && <progress max={100} value={percent} aria-label={words.composer.uploading(one.name, percent)} />}
            {one.error && (
              <span className="chip-error" role="alert">
                {one.error}
              </span>
            )}
            {isDone && (
              <span className="unseen" role="status">
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

function RemoveFile({ name, onRemove }: { name: string; onRemove: () => void }) {
  return (
    <button type="button" className="tool is-small" onClick={onRemove} aria-label={words.composer.removeFile(name)}>
      <Icon name="close" />
    </button>
  );
}
