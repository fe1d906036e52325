/** Files as chips; pictures also as previews. */
import { useState } from "react";

import { fileContent, fileThumbnail } from "../../wire/addresses";
import type { FileRef } from "../../wire/types";
import { sizeInWords, words } from "../../words";
import { Icon } from "../Icon";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"]);

type ShownFile = Pick<FileRef, "file_id" | "name" | "mime_type" | "size" | "reading">;

export const isPicture = (mimeType: string): boolean => PICTURES.has(mimeType);

export function FileList({ files, label }: { files: readonly ShownFile[]; label: string }) {
  if (!files.length) return null;
  return (
    <ul className="files" aria-label={label}>
      {files.map((file) => (
        <li key={file.file_id}>
          <FileChip file={file} />
        </li>
      ))}
    </ul>
  );
}

/** The server's thumbnail, or the whole picture if there is none. */
export function Preview({ file, className }: { file: ShownFile; className?: string }) {
  const [isWhole, setIsWhole] = useState(false);
  const src = isWhole ? fileContent(file.file_id) : fileThumbnail(file.file_id);
  return <img className={className} src={src} alt={words.thread.preview(file.name)} loading="lazy" decoding="async" onError={() => setIsWhole(true)} />;
}

export function FileChip({ file }: { file: ShownFile }) {
  const href = fileContent(file.file_id);
  return (
    <a className={isPicture(file.mime_type) ? "chip is-picture" : "chip"} href={href} download={file.name} title={words.thread.download(file.name)}>
      {isPicture(file.mime_type) && <Preview file={file} />}
      <span className="chip-line">
        <Icon name={isPicture(file.mime_type) ? "download" : "file"} />
        <span className="chip-name">{file.name}</span>
        <span className="chip-size">{sizeInWords(file.size)}</span>
      </span>
      {(file.reading === "named" || file.reading === "too_long") && <span className="chip-reading">{words.thread.reading[file.reading]}</span>}
    </a>
  );
}
