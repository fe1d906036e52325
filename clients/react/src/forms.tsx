/** The forms in which a message is written: the composer, and the editor of a sent message. */
import type { IfBusy } from "@turnkeep/client";
import { type FormEvent, type KeyboardEvent, type ReactNode, type RefObject, useEffect, useRef, useState } from "react";

import { type Chat, type ChatFile, type Draft, isStored } from "./chat.js";
import type { Words } from "./words.js";

export const EMPTY: Draft = { text: "", files: [] };

const isEmpty = ({ text, files }: Draft): boolean => text.trim() === "" && files.length === 0;
const trimmed = ({ text, files }: Draft): Draft => ({ text: text.trim(), files });

interface FormProps {
  className: string;
  label: string;
  draft: Draft;
  onDraft(draft: Draft): void;
  /** Called when the form is sent, by its button or by Enter. */
  onSend(event: KeyboardEvent | FormEvent): void;
  onKeyDown?(event: KeyboardEvent): void;
  area: RefObject<HTMLTextAreaElement | null>;
  isSending?: boolean;
  words: Words;
  /** The buttons at the end. */
  children: ReactNode;
}

/** A text and files. Enter sends it, and Shift+Enter makes a new line. */
function MessageForm({ className, label, draft, onDraft, onSend, onKeyDown, area, isSending = false, words, children }: FormProps): ReactNode {
  const { text, files } = draft;
  const picker = useRef<HTMLInputElement>(null);
  const onKey = (event: KeyboardEvent) => {
    onKeyDown?.(event);
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    onSend(event);
  };
  const onSubmit = (event: FormEvent) => {
    event.preventDefault();
    onSend(event);
  };
  return (
    <form className={className} onSubmit={onSubmit}>
      {files.map((file) => (
        <button key={keyOf(file)} type="button" className="tk-file" aria-label={words.remove(file.name)} onClick={() => onDraft({ text, files: files.filter((one) => one !== file) })}>
          {file.name} ×
        </button>
      ))}
      <textarea
        ref={area}
        dir="auto"
        value={text}
        rows={Math.min(8, text.split("\n").length + 1)}
        aria-label={label}
        placeholder={label}
        readOnly={isSending}
        onChange={(event) => onDraft({ text: event.target.value, files })}
        onKeyDown={onKey}
      />
      <input
        ref={picker}
        type="file"
        multiple
        hidden
        onChange={(event) => {
          onDraft({ text, files: [...files, ...(event.target.files ?? [])] });
          event.target.value = "";
        }}
      />
      <button type="button" aria-label={words.attach} title={words.attach} disabled={isSending} onClick={() => picker.current?.click()}>
        +
      </button>
      {children}
    </form>
  );
}

const keyOf = (file: ChatFile): string => (isStored(file) ? file.file_id : `${file.name}:${file.size}:${file.lastModified}`);

interface ComposerProps {
  chat: Chat;
  draft: Draft;
  onDraft(draft: Draft): void;
  area: RefObject<HTMLTextAreaElement | null>;
  isBusy: boolean;
  /** Whether an answer is being written, which words can steer. */
  isLive: boolean;
  onEditLast(): void;
  words: Words;
}

/** The form for the next message. While an answer is written, it waits behind the answer or steers it. */
export function Composer({ chat, draft, onDraft, area, isBusy, isLive, onEditLast, words }: ComposerProps): ReactNode {
  const canSend = !isEmpty(draft);
  const canSteer = isLive && canSend && draft.files.length === 0;
  const send = (isSteer: boolean) => {
    if (!canSend) return;
    const { text, files } = trimmed(draft);
    void (isSteer ? chat.steer(text) : chat.send(text, files));
    onDraft(EMPTY);
    // The pressed button may go away with the text.
    area.current?.focus();
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const hasModifier = event.shiftKey || event.ctrlKey || event.metaKey || event.altKey;
    if (event.key !== "ArrowUp" || hasModifier || draft.text !== "" || canSend) return;
    event.preventDefault();
    onEditLast();
  };
  return (
    <MessageForm className="tk-composer" label={words.write} draft={draft} onDraft={onDraft} area={area} words={words} onKeyDown={onKeyDown} onSend={(event) => send("altKey" in event && event.altKey && canSteer)}>
      {canSteer && (
        <button type="button" title={words.steerHint} onClick={() => send(true)}>
          {words.steer}
        </button>
      )}
      {isBusy && (
        <button type="button" onClick={() => void chat.stop()}>
          {words.stop}
        </button>
      )}
      <button type="submit" className="tk-send" disabled={!canSend}>
        {words.send}
      </button>
    </MessageForm>
  );
}

interface EditorProps {
  chat: Chat;
  turnId: string;
  /** The message as it is. */
  message: Draft;
  isBusy: boolean;
  onClose(): void;
  words: Words;
}

/** The editor of a sent message. It stays open until the server has accepted the edit, so that nothing is lost. */
export function Editor({ chat, turnId, message, isBusy, onClose, words }: EditorProps): ReactNode {
  const [draft, setDraft] = useState(message);
  const [isSending, setIsSending] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => {
    const { current } = area;
    current?.focus();
    current?.setSelectionRange(current.value.length, current.value.length);
  }, []);
  const canSend = !isEmpty(draft) && !isSending;
  const send = async (ifBusy: IfBusy) => {
    if (!canSend) return;
    // The pressed button is disabled now and would lose the focus.
    area.current?.focus();
    setIsSending(true);
    const isAccepted = await chat.edit(turnId, trimmed(draft), ifBusy);
    setIsSending(false);
    if (isAccepted) onClose();
  };
  const onSend = (event: KeyboardEvent | FormEvent) => void send(isBusy && "ctrlKey" in event && (event.ctrlKey || event.metaKey) ? "interrupt" : "enqueue");
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.key === "Escape" && !isSending) onClose();
  };
  return (
    <MessageForm className="tk-editor" label={words.editLabel} draft={draft} onDraft={setDraft} area={area} isSending={isSending} words={words} onKeyDown={onKeyDown} onSend={onSend}>
      <button type="button" disabled={isSending} onClick={onClose}>
        {words.cancel}
      </button>
      {isBusy && (
        <button type="button" disabled={!canSend} title={words.interruptHint} onClick={() => void send("interrupt")}>
          {words.interrupt}
        </button>
      )}
      <button type="submit" className="tk-send" disabled={!canSend}>
        {words.editSend}
      </button>
    </MessageForm>
  );
}
