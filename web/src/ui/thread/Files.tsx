/** Files as chips; pictures also as previews. A chip opens its file beside the conversation, a picture as large as the window. */
import { lazy, type MouseEvent, type ReactNode, Suspense, useEffect, useRef, useState } from "react";

import type { FileRef } from "@turnkeep/client";
import { directAddress, download, loadedAddress } from "../../effects/fileAddresses";
import { isId } from "../../state/route";
import { fileContent, fileThumbnail } from "../../wire/addresses";
import { sizeInWords, words } from "../../words";
import { useServices } from "../context";
import { Icon } from "../Icon";
import { RouteLink } from "../RouteLink";

const Lightbox = lazy(() => import("./Lightbox"));

const PICTURES = new Set(["image/png", "image/jpeg", "image/gif", "image/webp", "image/avif"]);

type ShownFile = Pick<FileRef, "file_id" | "name" | "mime_type" | "size" | "reading">;

export const isPicture = (mimeType: string): boolean => PICTURES.has(mimeType);

export function FileList({ files, label, threadId }: { files: readonly ShownFile[]; label: string; threadId: string }) {
  const [opened, setOpened] = useState<number | null>(null);
  const list = useRef<HTMLUListElement>(null);
  const pictures = files.filter((file) => isPicture(file.mime_type));
  const close = () => {
    setOpened(null);
    list.current?.querySelectorAll<HTMLElement>("button.chip-open")[opened ?? 0]?.focus();
  };
  if (!files.length) return null;
  return (
    <>
      <ul ref={list} className="files" aria-label={label}>
        {files.map((file) => (
          <li key={file.file_id}>
            <FileChip file={file} threadId={threadId} onPicture={() => setOpened(pictures.indexOf(file))} />
          </li>
        ))}
      </ul>
      {opened !== null && (
        <Suspense fallback={null}>
          <Lightbox pictures={pictures} at={opened} onMove={setOpened} onClose={close} />
        </Suspense>
      )}
    </>
  );
}

/** The server's thumbnail, or the whole picture if there is none. */
export function Preview({ file, className }: { file: ShownFile; className?: string }) {
  const [isWhole, setIsWhole] = useState(false);
  const src = useAddress(isWhole ? fileContent(file.file_id) : fileThumbnail(file.file_id), () => setIsWhole(true));
  return <img className={className} src={src} alt={words.thread.preview(file.name)} loading="lazy" decoding="async" onError={() => setIsWhole(true)} />;
}

/** The address of a picture; undefined while it is loaded. */
export function useAddress(path: string, onError: () => void): string | undefined {
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

function FileChip({ file, threadId, onPicture }: { file: ShownFile; threadId: string; onPicture: () => void }) {
  const link = useDownload(file.file_id, file.name);
  const isShown = isPicture(file.mime_type);
  return (
    <div className={isShown ? "chip is-picture" : "chip"}>
      <ChipOpener file={file} threadId={threadId} {...(isShown ? { onPicture } : {})}>
        {isShown && <Preview file={file} />}
        <span className="chip-line">
          {!isShown && <Icon name="file" />}
          <span className="chip-name" dir="auto">
            {file.name}
          </span>
          <span className="chip-size">{sizeInWords(file.size)}</span>
        </span>
        {file.reading && <span className="chip-reading">{readingInWords(file)}</span>}
      </ChipOpener>
      <a className="tool is-small" {...link} aria-label={words.thread.download(file.name)} title={words.thread.download(file.name)}>
        <Icon name="download" />
      </a>
    </div>
  );
}

/** The part of a chip that opens the file: a button for a picture, a link to its place beside the conversation for others. */
function ChipOpener({ file, threadId, onPicture, children }: { file: ShownFile; threadId: string; onPicture?: () => void; children: ReactNode }) {
  if (onPicture)
    return (
      <button type="button" className="chip-open" onClick={onPicture} title={words.files.open(file.name)}>
        {children}
      </button>
    );
  if (!isId("conv", threadId) || !isId("file", file.file_id)) return <span className="chip-open">{children}</span>;
  return (
    <RouteLink className="chip-open" route={{ page: "chat", conversationId: threadId, item: { kind: "file", id: file.file_id } }} title={words.files.open(file.name)}>
      {children}
    </RouteLink>
  );
}

/** Whether the model read the file, and if not, why. */
function readingInWords({ reading, mime_type: type }: ShownFile): string {
  if (reading === "named") return isPicture(type) ? words.thread.reading.named.picture : words.thread.reading.named.other;
  return reading === "text" || reading === "image" || reading === "too_long" ? words.thread.reading[reading] : "";
}
