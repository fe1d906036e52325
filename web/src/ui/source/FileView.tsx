/** A file: its content, with the cited passage marked, a link to download it, and a button that saves it for the workspace. */
import { type ReactNode, useCallback } from "react";

import type { StoredFile } from "@turnkeep/client";
import { readFile, saveFile } from "../../effects/requests";
import type { Passage } from "../../state/route";
import { sizeInWords, words } from "../../words";
import { useServices } from "../context";
import { Icon } from "../Icon";
import { fileContent } from "../../wire/addresses";
import { ErrorText, useLoaded, useSubmit } from "../requestState";
import { isPicture, useAddress, useDownload } from "../thread/Files";
import { FileContent } from "./FileContent";
import { LoadProblem, SourceHeader } from "./SourceHeader";

interface Props {
  id: string;
  passage?: Passage | undefined;
  tools: ReactNode;
}

export function FileView({ id, passage, tools }: Props) {
  const { host } = useServices();
  const loaded = useLoaded(useCallback(() => readFile(id), [id]));
  const file = loaded.value?.id === id ? loaded.value : null;
  const link = useDownload(id, file?.name ?? "");
  const about = file ? [passage?.part, sizeInWords(file.size)].filter(Boolean).join(" · ") : null;
  return (
    <>
      <SourceHeader kind="file" title={file?.name ?? null} about={about} tools={tools} />
      {!file && <LoadProblem loaded={loaded} missing={words.source.fileGone} />}
      {file && (
        <div className="file-buttons">
          <a className="button is-link" {...link}>
            <Icon name="download" />
            {words.source.download}
          </a>
          {file.conversation_id !== null && !host && <SaveButton id={file.id} />}
        </div>
      )}
      {file && isPicture(file.mime_type) && <Picture file={file} />}
      {file && !isPicture(file.mime_type) && <FileContent key={id} file={file} passage={passage} />}
    </>
  );
}

function Picture({ file }: { file: StoredFile }) {
  const src = useAddress(fileContent(file.id), () => undefined);
  return (
    <div className="panel-picture">
      <img src={src} alt={file.name} />
    </div>
  );
}

/** Copies the file into the workspace's Files. */
function SaveButton({ id }: { id: string }) {
  const { isSubmitting, error, submit } = useSubmit();
  return (
    <>
      <button type="button" className="button" disabled={isSubmitting} onClick={() => void submit(() => saveFile(id), words.files.saved)}>
        {words.files.save}
      </button>
      <ErrorText text={error} />
    </>
  );
}
