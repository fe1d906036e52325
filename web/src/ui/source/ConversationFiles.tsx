/** All files of a conversation, those of its users and those that the assistant made, in one list. */
import { type ReactNode, useCallback } from "react";

import type { StoredFile } from "@turnkeep/client";
import { conversationFiles, saveFile } from "../../effects/requests";
import { dateInWords, sizeInWords, words } from "../../words";
import { useServices } from "../context";
import { Icon } from "../Icon";
import { LoadStatus, MoreButton, useLoadedList, useSubmit } from "../requestState";
import { RouteLink } from "../RouteLink";
import { isPicture, Preview, useDownload } from "../thread/Files";
import { SourceHeader } from "./SourceHeader";

export function ConversationFiles({ conversationId, tools }: { conversationId: string; tools: ReactNode }) {
  const found = useLoadedList(useCallback((cursor: string | null) => conversationFiles(conversationId, cursor), [conversationId]));
  return (
    <>
      <SourceHeader kind="files" title={words.files.title} about={found.items && !found.more ? words.files.count(found.items.length) : null} tools={tools} />
      {!found.items && <LoadStatus error={found.error} onRetry={found.reload} />}
      {found.items?.length === 0 && <p className="faint">{words.files.none}</p>}
      <ul className="items is-files">
        {found.items?.map((file) => (
          <FileItem key={file.id} file={file} conversationId={conversationId} />
        ))}
      </ul>
      <MoreButton list={found} label={words.files.more} />
    </>
  );
}

function FileItem({ file, conversationId }: { file: StoredFile; conversationId: string }) {
  const { host } = useServices();
  const { isSubmitting, submit } = useSubmit();
  const about = [sizeInWords(file.size), words.files.from[file.source], dateInWords(file.created_at)].filter(Boolean).join(" · ");
  return (
    <li className="item">
      <FileMark file={file} />
      <div className="item-text">
        <RouteLink route={{ page: "chat", conversationId, item: { kind: "file", id: file.id } }}>{file.name}</RouteLink>
        <span className="faint">{about}</span>
      </div>
      {!host && (
        <button type="button" className="tool" disabled={isSubmitting} onClick={() => void submit(() => saveFile(file.id), words.files.saved)} aria-label={words.files.saveNamed(file.name)} title={words.files.save}>
          <Icon name="plus" />
        </button>
      )}
      <SaveLink file={file} />
    </li>
  );
}

export function FileMark({ file }: { file: StoredFile }) {
  if (!isPicture(file.mime_type)) return <Icon name="file" />;
  return <Preview file={{ file_id: file.id, name: file.name, mime_type: file.mime_type, size: file.size }} className="thumb" />;
}

export function SaveLink({ file }: { file: StoredFile }) {
  const link = useDownload(file.id, file.name);
  return (
    <a className="tool" {...link} aria-label={words.thread.download(file.name)} title={words.thread.download(file.name)}>
      <Icon name="download" />
    </a>
  );
}
