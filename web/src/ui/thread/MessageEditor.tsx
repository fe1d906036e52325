/** The editor of a sent message, with its files. While an answer is written, the edit is queued or interrupts it. */
import { type KeyboardEvent, useEffect, useLayoutEffect, useRef } from "react";

import { editUploadKey, type IfBusy, type MessageEdit } from "@turnkeep/client";
import type { FileUpload } from "../../state/state";
import { words } from "../../words";
import { AttachButton, pasteHandler, UploadList } from "../composer/attachments";
import { useSelect, useServices } from "../context";

const NONE: readonly FileUpload[] = [];

interface Props {
  threadId: string;
  turnId: string;
  edit: MessageEdit;
  isBusy: boolean;
  /** Whether the user has just opened it. An editor that scrolls into view again must not take the focus. */
  isNew: boolean;
}

export function MessageEditor({ threadId, turnId, edit, isBusy, isNew }: Props) {
  const { notices, branches } = useServices();
  const attached = useSelect((state) => state.uploads[editUploadKey(turnId)] ?? NONE);
  const form = useRef<HTMLFormElement>(null);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    if (!isNew) return;
    area.current?.focus();
    area.current?.setSelectionRange(area.current.value.length, area.current.value.length);
  }, [isNew]);
  useFocusAfterEdit(form, turnId);

  const { text, files, isSending } = edit;
  const isUploading = attached.some((one) => one.stored === null && one.error === null);
  const canSend = (text.trim() !== "" || files.length > 0 || attached.some((one) => one.stored)) && !isUploading && !isSending;
  const attach = (added: readonly File[]) => branches.attachFiles(threadId, turnId, added);
  const close = () => branches.closeEdit(threadId, turnId);
  const submit = (ifBusy: IfBusy) => {
    if (isUploading) notices.show(words.composer.waitForUploads);
    if (!canSend) return;
    // The pressed button is disabled now and would lose the focus.
    area.current?.focus();
    void branches.sendEdit(threadId, turnId, ifBusy);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") close();
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    submit((event.ctrlKey || event.metaKey) && isBusy ? "interrupt" : "enqueue");
  };
  return (
    <form
      ref={form}
      className="editor"
      data-editing={turnId}
      onSubmit={(event) => {
        event.preventDefault();
        submit("enqueue");
      }}
    >
      <UploadList uploads={attached} kept={files} onRemove={(file) => branches.removeFile(threadId, turnId, file.file_id)} />
      <textarea
        dir="auto"
        ref={area}
        value={text}
        rows={Math.min(12, text.split("\n").length + 1)}
        readOnly={isSending}
        aria-label={words.thread.editLabel}
        onChange={(event) => branches.changeText(threadId, turnId, event.target.value)}
        onKeyDown={onKeyDown}
        onPaste={pasteHandler(attach)}
      />
      <div className="editor-foot">
        <AttachButton onFiles={attach} isDisabled={isSending} />
        <span className="composer-gap" />
        <button type="button" className="button" onClick={close}>
          {words.cancel}
        </button>
        {isBusy && (
          <button type="button" className="button" onClick={() => submit("interrupt")} disabled={!canSend} title={words.composer.interrupt}>
            {words.thread.interrupt}
          </button>
        )}
        <button type="submit" className="button is-main" disabled={!canSend} title={isBusy ? words.composer.queue : undefined}>
          {isSending ? words.thread.sending : isBusy ? words.thread.queue : words.thread.editSend}
        </button>
      </div>
    </form>
  );
}

/** After the editor is closed, the focus goes to the button that opened it, or to the message box if the edit was sent. */
function useFocusAfterEdit(form: { current: HTMLElement | null }, turnId: string): void {
  useLayoutEffect(() => {
    const element = form.current;
    return () => {
      if (!element?.contains(document.activeElement)) return;
      queueMicrotask(() => {
        const opener = document.querySelector<HTMLElement>(`.is-user[data-turn="${CSS.escape(turnId)}"] [data-opens="editor"]`);
        if (opener) opener.focus();
        // On a phone this would open the keyboard over the answer.
        else if (matchMedia("(pointer: fine)").matches) document.getElementById("message")?.focus();
      });
    };
  }, [form, turnId]);
}
