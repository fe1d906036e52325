/** A picture as large as the window, over the page, with the other pictures of its message. Loaded when the first one is opened. */
import { type KeyboardEvent, useEffect, useRef } from "react";

import type { FileRef } from "@turnkeep/client";
import { fileContent } from "../../wire/addresses";
import { sizeInWords, words } from "../../words";
import { Icon } from "../Icon";
import { useAddress, useDownload } from "./Files";

type Picture = Pick<FileRef, "file_id" | "name" | "size">;

interface Props {
  pictures: readonly Picture[];
  at: number;
  onMove: (at: number) => void;
  onClose: () => void;
}

export default function Lightbox({ pictures, at, onMove, onClose }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const picture = pictures[at];
  useEffect(() => dialog.current?.showModal(), []);
  if (!picture) return null;
  const move = (by: number) => {
    if (pictures[at + by]) onMove(at + by);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "ArrowLeft") move(-1);
    if (event.key === "ArrowRight") move(1);
  };
  return (
    <dialog
      ref={dialog}
      className="lightbox"
      aria-label={picture.name}
      onClose={onClose}
      onKeyDown={onKeyDown}
      onClick={(event) => {
        // A click beside the picture closes it.
        if (event.target === dialog.current || (event.target as Element).matches(".lightbox-place")) dialog.current?.close();
      }}
    >
      <header className="lightbox-head">
        <span className="chip-name" dir="auto">
          {picture.name}
        </span>
        <span className="chip-size">{sizeInWords(picture.size)}</span>
        {pictures.length > 1 && <span className="chip-size">{words.files.pictureCount(at + 1, pictures.length)}</span>}
        <SaveLink file={picture} />
        <button type="button" className="tool" onClick={() => dialog.current?.close()} aria-label={words.close} title={words.close}>
          <Icon name="close" />
        </button>
      </header>
      <div className="lightbox-place">
        {pictures.length > 1 && (
          <button type="button" className="tool" disabled={!pictures[at - 1]} onClick={() => move(-1)} aria-label={words.files.previousPicture} title={words.files.previousPicture}>
            <Icon name="left" />
          </button>
        )}
        <WholePicture key={picture.file_id} file={picture} />
        {pictures.length > 1 && (
          <button type="button" className="tool" disabled={!pictures[at + 1]} onClick={() => move(1)} aria-label={words.files.nextPicture} title={words.files.nextPicture}>
            <Icon name="right" />
          </button>
        )}
      </div>
    </dialog>
  );
}

function WholePicture({ file }: { file: Picture }) {
  const src = useAddress(fileContent(file.file_id), () => undefined);
  return <img src={src} alt={file.name} />;
}

function SaveLink({ file }: { file: Picture }) {
  const link = useDownload(file.file_id, file.name);
  return (
    <a className="tool" {...link} aria-label={words.thread.download(file.name)} title={words.thread.download(file.name)}>
      <Icon name="download" />
    </a>
  );
}
