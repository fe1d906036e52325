/** A question that is being edited, with its files. It is sent at once, after the answer that is being written, or instead of it. */
import { type KeyboardEvent, useEffect, useLayoutEffect, useRef } from "react";

import { type MessageEdit, editUploadKey } from "../../state/edits";
import { type FileUpload } from "../../state/state";
import type { IfBusy } from "../../wire/types";
import { words } from "../../words";
import { AttachButton, pasteHandler, UploadList } from "../composer/attachments";
import { useServices, useSelect } from "../context";

const NONE: readonly FileUpload[] = [];

interface Props {
  threadId: string;
  turnId: string;
  edit: MessageEdit;
  isBusy: boolean;
  /** Whether it was just opened; one that scrolls into view again must not take the focus from elsewhere. */
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
  useFocusAfterwards(form, turnId);

  const { text, files, isSending } = edit;
  const isUploading = attached.some((one) => one.stored === null && one.error === null);
  const canSend = (text.trim() !== "" || files.length > 0 || attached.some((one) => one.stored)) && !isUploading && !isSending;
  const attach = (added: readonly File[]) => branches.attachFiles(threadId, turnId, added);
  const giveUp = () => branches.closeEdit(threadId, turnId);
  const submit = (ifBusy: IfBusy) => {
    if (isUploading) notices.show(words.composer.waitForUploads);
    if (!canSend) return;
    // The button that was pressed is disabled now, and would lose the focus to nobody.
    area.current?.focus();
    void branches.sendEdit(threadId, turnId, ifBusy);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape") giveUp();
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
      <UploadList uploads={attached} kept={files} onDrop={(file) => branches.removeFile(threadId, turnId, file.file_id)} />
      <textarea
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
        <button type="button" className="button" onClick={giveUp}>
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

/** The focus goes back to the button that opened the editor; where another question has taken its place, to the next message. */
function useFocusAfterwards(form: { current: HTMLElement | null }, turnId: string): void {
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
