/** The workspace's Files: what was saved for everyone in it. Every member can read, upload and save; the server says who may delete. */
import { useRef, useState } from "react";

import { deleteFile, savedFiles, uploadToWorkspace } from "../../effects/requests";
import { errorText } from "../../effects/notices";
import type { KnowledgeItem, Route } from "../../state/route";
import { dateInWords, sizeInWords, words } from "../../words";
import { useSelect } from "../context";
import { ConfirmButton } from "../forms";
import { ErrorText, LoadStatus, MoreButton, useLoadedList, useSubmit } from "../requestState";
import { RouteLink } from "../RouteLink";
import { FileMark, SaveLink } from "../source/ConversationFiles";
import { FileView } from "../source/FileView";
import { BackLink } from "../source/SourceHeader";

const ALL = { page: "settings", section: "files" } as const satisfies Route;

export function Files({ item }: { item: KnowledgeItem | undefined }) {
  const found = useLoadedList(savedFiles);
  const { error, submit } = useSubmit();
  if (item?.kind === "file") return <FileView id={item.id} passage={item.passage} tools={<BackLink route={ALL} />} />;
  return (
    <>
      <Uploader onUploaded={found.reload} />
      <ErrorText text={error} />
      {!found.items && <LoadStatus error={found.error} onRetry={found.reload} />}
      {found.items?.length === 0 && <p className="faint">{words.files.workspaceNone}</p>}
      <ul className="items is-files">
        {found.items?.map((file) => (
          <li key={file.id} className="item">
            <FileMark file={file} />
            <div className="item-text">
              <RouteLink route={{ ...ALL, item: { kind: "file", id: file.id } }}>{file.name}</RouteLink>
              <span className="faint">
                {sizeInWords(file.size)} · {dateInWords(file.created_at)}
              </span>
            </div>
            <SaveLink file={file} />
            <ConfirmButton label={words.menu.delete} ariaLabel={words.files.delete(file.name)} question={words.settings.deleteSure} onConfirm={() => void submit(() => deleteFile(file.id)).then(found.reload)} />
          </li>
        ))}
      </ul>
      <MoreButton list={found} label={words.files.more} />
    </>
  );
}

interface Upload {
  readonly key: number;
  readonly file: File;
  /** From 0 to 1. */
  readonly progress: number;
  readonly error: string | null;
}

/** The button that uploads files, and those that are under way or have failed. */
function Uploader({ onUploaded }: { onUploaded: () => void }) {
  const me = useSelect((state) => state.me);
  const picker = useRef<HTMLInputElement>(null);
  const count = useRef(0);
  const [uploads, setUploads] = useState<readonly Upload[]>([]);
  const change = (key: number, changes: Partial<Upload>) => setUploads((all) => all.map((one) => (one.key === key ? { ...one, ...changes } : one)));
  const remove = (key: number) => setUploads((all) => all.filter((one) => one.key !== key));
  const run = async (key: number, file: File) => {
    if (me && file.size > me.max_file_bytes) return change(key, { error: words.composer.tooLarge(file.name, sizeInWords(file.size), sizeInWords(me.max_file_bytes)) });
    try {
      await uploadToWorkspace(file, { onProgress: (progress) => change(key, { progress }) });
      remove(key);
      return onUploaded();
    } catch (error) {
      return change(key, { error: errorText(error) });
    }
  };
  const begin = (files: readonly File[]) => {
    for (const file of files) {
      count.current += 1;
      const key = count.current;
      setUploads((all) => [...all, { key, file, progress: 0, error: null }]);
      void run(key, file);
    }
  };
  return (
    <>
      <div className="intro">
        <p className="faint">{words.files.workspaceIntro}</p>
        <input
          ref={picker}
          className="visually-hidden"
          type="file"
          multiple
          tabIndex={-1}
          aria-hidden="true"
          onChange={(event) => {
            begin([...(event.target.files ?? [])]);
            event.target.value = "";
          }}
        />
        <button type="button" className="button is-main" onClick={() => picker.current?.click()}>
          {words.files.upload}
        </button>
      </div>
      {uploads.length > 0 && (
        <ul className="uploads">
          {uploads.map(({ key, file, progress, error }) => (
            <li key={key} className={error ? "chip is-failure" : "chip"}>
              <span className="chip-name" dir="auto">
                {file.name}
              </span>
              {error === null ? (
                <progress max={100} value={Math.round(progress * 100)} aria-label={words.composer.uploading(file.name, Math.round(progress * 100))} />
              ) : (
                <>
                  <span className="chip-error" role="alert">
                    {error}
                  </span>
                  <button
                    type="button"
                    className="link"
                    onClick={() => {
                      change(key, { error: null, progress: 0 });
                      void run(key, file);
                    }}
                    aria-label={words.composer.retryFile(file.name)}
                  >
                    {words.retry}
                  </button>
                  <button type="button" className="link" onClick={() => remove(key)} aria-label={words.composer.removeFile(file.name)}>
                    {words.remove}
                  </button>
                </>
              )}
            </li>
          ))}
        </ul>
      )}
    </>
  );
}
