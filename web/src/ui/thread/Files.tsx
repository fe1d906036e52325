/** Files as chips; pictures also as previews. */
import { type MouseEvent, useEffect, useState } from "react";

import type { FileRef } from "@turnkeep/client";
import { directAddress, download, loadedAddress } from "../../effects/fileAddresses";
import { fileContent, fileThumbnail } from "../../wire/addresses";
import { sizeInWords, words } from "../../words";
import { useServices } from "../context";
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
  const src = useAddress(isWhole ? fileContent(file.file_id) : fileThumbnail(file.file_id), () => setIsWhole(true));
  return <img className={className} src={src} alt={words.thread.preview(file.name)} loading="lazy" decoding="async" onError={() => setIsWhole(true)} />;
}

/** The address of a picture; undefined while it is loaded. */
function useAddress(path: string, onError: () => void): string | undefined {
  const direct = directAddress(path);
  const [loaded, setLoaded] = useState<{ path: string; url: string } | null>(null);
  useEffect(() => {
    if (direct !== null) return undefined;
    let url: string | null = null;
    let isShown = true;
    loadedAddress(path).then(
      (found) => {
        if (!isShown) return URL.revokeObjectURL(found);
        url = found;
        return setLoaded({ path, url });
      },
      () => isShown && onError(),
    );
    return () => {
      isShown = false;
      if (url !== null) URL.revokeObjectURL(url);
    };
  }, [path, direct]);
  return direct ?? (loaded?.path === path ? loaded.url : undefined);
}

/** The attributes of a link that saves a file. */
export function useDownload(id: string, name: string): { href: string; download: string; onClick?: (event: MouseEvent) => void } {
  const { notices } = useServices();
  const href = fileContent(id);
  if (directAddress(href) !== null) return { href, download: name };
  const onClick = (event: MouseEvent) => {
    event.preventDefault();
    void download(href, name).catch((error: unknown) => notices.report(error));
  };
  return { href, download: name, onClick };
}

export function FileChip({ file }: { file: ShownFile }) {
  const link = useDownload(file.file_id, file.name);
  return (
    <a className={isPicture(file.mime_type) ? "chip is-picture" : "chip"} {...link} title={words.thread.download(file.name)}>
      {isPicture(file.mime_type) && <Preview file={file} />}
      <span className="chip-line">
        <Icon name={isPicture(file.mime_type) ? "download" : "file"} />
        <span className="chip-name" dir="auto">
          {file.name}
        </span>
        <span className="chip-size">{sizeInWords(file.size)}</span>
      </span>
      {(file.reading === "named" || file.reading === "too_long") && <span className="chip-reading">{words.thread.reading[file.reading]}</span>}
    </a>
  );
}
