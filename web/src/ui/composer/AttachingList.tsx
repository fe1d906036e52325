/** Files on their way into the next message, each with its progress. */
import type { Attaching } from "../../state/state";
import { sizeInWords, words } from "../../words";
import { useDesk } from "../context";
import { Icon } from "../Icon";

export function AttachingList({ attaching }: { attaching: readonly Attaching[] }) {
  const desk = useDesk();
  if (!attaching.length) return null;
  return (
    <ul className="attaching" aria-label={words.thread.attachments}>
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
            <button type="button" className="tool is-small" onClick={() => desk.uploads.detach(one.key)} aria-label={words.composer.removeFile(one.name)}>
              <Icon name="close" />
            </button>
          </li>
        );
      })}
    </ul>
  );
}
