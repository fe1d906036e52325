/** Where messages are written: text, files, the agent and the model, and the button that sends, queues or stops. */
import { type KeyboardEvent, memo, useEffect, useLayoutEffect, useRef, useState } from "react";

import { readStored, writeStored } from "../../effects/storage";
import { isBusy } from "../../state/select";
import { type Attaching, NEW } from "../../state/state";
import type { FileRef, IfBusy } from "../../wire/types";
import { words } from "../../words";
import { useServices, useSelect } from "../context";
import { Icon } from "../Icon";
import { AttachingList } from "./AttachingList";
import { Choices } from "./Choices";
import { Paperclip } from "./Paperclip";
import { pasting } from "./pasting";

const NONE: readonly Attaching[] = [];

export const Composer = memo(function Composer({ threadId }: { threadId: string }) {
  const { notices, threads, uploads, outbox } = useServices();
  const busy = useSelect((state) => isBusy(state.threads[threadId]));
  const live = useSelect((state) => state.threads[threadId]?.live?.id ?? null);
  const attaching = useSelect((state) => state.attaching[threadId] ?? NONE);
  const [text, setText] = useDraft(threadId);
  const [choice, setChoice] = useState<{ agentId: string | null; model: string | null }>({ agentId: null, model: null });
  const area = useRef<HTMLTextAreaElement>(null);
  useGrowing(area, text);
  useEffect(() => {
    if (matchMedia("(pointer: fine)").matches) area.current?.focus();
  }, [threadId]);

  const isUploading = attaching.some((one) => one.stored === null && one.error === null);
  const files = attaching.flatMap((one): FileRef[] => (one.stored ? [one.stored] : []));
  const isEmpty = text.trim() === "" && files.length === 0;
  const canSend = !isEmpty && !isUploading;

  const submit = (ifBusy: IfBusy) => {
    if (isUploading) notices.show(words.composer.waitForUploads);
    if (!canSend) return;
    // The first turn's choice becomes the conversation's; later turns take it from there.
    const { agentId, model } = threadId === NEW ? choice : { agentId: null, model: null };
    void outbox.send({ text: text.trim(), attachments: files, agentId, model, ifBusy });
    uploads.attached(threadId);
    setText("");
  };
  // The button goes with the answer; whoever pressed it goes on writing.
  const stop = () => {
    void threads.stop(threadId);
    if (matchMedia("(pointer: fine)").matches) area.current?.focus();
  };
  const onKeyDown = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    submit((event.ctrlKey || event.metaKey) && busy ? "interrupt" : "enqueue");
  };
  const attach = (files: readonly File[]) => uploads.attach(threadId, files);

  return (
    <form
      className="composer"
      onSubmit={(event) => {
        event.preventDefault();
        submit("enqueue");
      }}
    >
      <AttachingList attaching={attaching} />
      <textarea
        id="message"
        ref={area}
        rows={1}
        value={text}
        placeholder={busy ? words.composer.busyPlaceholder : words.composer.placeholder}
        aria-label={words.composer.label}
        aria-describedby="message-keys"
        onChange={(event) => setText(event.target.value)}
        onKeyDown={onKeyDown}
        onPaste={pasting(attach)}
      />
      <div className="composer-foot">
        <Paperclip onFiles={attach} />
        <Choices threadId={threadId} choice={choice} onChoice={setChoice} isNew={threadId === NEW} />
        <span id="message-keys" className="unseen">
          {words.composer.keys}
        </span>
        <span className="composer-gap" />
        {busy && canSend && (
          <button type="button" className="tool" onClick={() => submit("interrupt")} aria-label={words.composer.interrupt} title={words.composer.interrupt}>
            <Icon name="bolt" />
          </button>
        )}
        {live !== null && (
          <button key="stop" type="button" className={isEmpty ? "send is-stop" : "tool is-stop"} onClick={stop} aria-label={words.composer.stop} title={words.composer.stop}>
            <Icon name="stop" />
          </button>
        )}
        {(live === null || !isEmpty) && (
          <button
            key="send"
            type="submit"
            className="send"
            disabled={!canSend}
            aria-label={busy ? words.composer.queue : words.composer.send}
            title={busy ? words.composer.queue : words.composer.send}
          >
            <Icon name="send" />
          </button>
        )}
      </div>
    </form>
  );
});

/** The text of one conversation's next message, kept while it is not sent. */
function useDraft(threadId: string): [string, (text: string) => void] {
  const name = `draft:${threadId}`;
  const [draft, setDraft] = useState(() => ({ threadId, text: readStored<string>(name) ?? "" }));
  const current = draft.threadId === threadId ? draft : { threadId, text: readStored<string>(name) ?? "" };
  if (current !== draft) setDraft(current);
  const change = (text: string) => {
    setDraft({ threadId, text });
    writeStored(name, text);
  };
  return [current.text, change];
}

/** As tall as its text, up to the height that the style sheet allows. */
function useGrowing(area: React.RefObject<HTMLTextAreaElement | null>, text: string): void {
  useLayoutEffect(() => {
    const element = area.current;
    if (!element || CSS.supports("field-sizing", "content")) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight}px`;
  }, [area, text]);
}
