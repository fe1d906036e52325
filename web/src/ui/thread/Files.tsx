/** Files as chips; pictures also as previews. */
import { useState } from "react";

import type { FileRef } from "../../wire/types";
import { fileContent, fileThumbnail } from "../../wire/addresses";
import { sizeInWords, words } from "../../words";
import { Icon } from "../Icon";

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"]);

type Shown = Pick<FileRef, "file_id" | "name" | "mime_type" | "size">;

export const isPicture = (mimeType: string): boolean => PICTURES.has(mimeType);

export function FileList({ files, label }: { files: readonly Shown[]; label: string }) {
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

/** The small picture that the server makes; the whole one where it makes none. */
export function Preview({ file, className }: { file: Shown; className?: string }) {
  const [isWhole, setIsWhole] = useState(false);
  const src = isWhole ? fileContent(file.file_id) : fileThumbnail(file.file_id);
  return <img className={className} src={src} alt={words.thread.preview(file.name)} loading="lazy" decoding="async" onError={() => setIsWhole(true)} />;
}

export function FileChip({ file }: { file: Shown }) {
  const href = fileContent(file.file_id);
  return (
    <a className={isPicture(file.mime_type) ? "chip is-picture" : "chip"} href={href} download={file.name} title={words.thread.download(file.name)}>
      {isPicture(file.mime_type) && <Preview file={file} />}
      <span className="chip-line">
        <Icon name={isPicture(file.mime_type) ? "download" : "file"} />
        <span className="chip-name">{file.name}</span>
        <span className="chip-size">{sizeInWords(file.size)}</span>
      </span>
    </a>
  );
}
