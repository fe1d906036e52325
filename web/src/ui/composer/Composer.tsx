/** The form for the next message: text, files, agent and model, and the buttons that send, queue, interrupt or stop. */
import { type KeyboardEvent, lazy, memo, Suspense, useEffect, useLayoutEffect, useRef, useState, useSyncExternalStore } from "react";

import { type FileRef, type IfBusy, isBusy } from "@turnkeep/client";
import { type FileUpload, NEW } from "../../state/state";
import { words } from "../../words";
import { useSelect, useServices } from "../context";
import { Icon } from "../Icon";
import { AttachButton, pasteHandler, UploadList } from "./attachments";

/** Loaded when it is opened. */
export const BehaviourDialog = lazy(() => import("../BehaviourDialog"));

const NONE: readonly FileUpload[] = [];

/** The agent and the model that will answer; null for none, and for the default. */
export interface ModelChoice {
  readonly agentId: string | null;
  readonly model: string | null;
}

interface Props {
  threadId: string;
  /** The choice for a conversation that does not exist yet. */
  choice: ModelChoice;
  onChoice: (choice: ModelChoice) => void;
}

export const Composer = memo(function Composer({ threadId, choice, onChoice }: Props) {
  const { notices, threads, uploads, outbox, host } = useServices();
  const busy = useSelect((state) => isBusy(state.threads[threadId]));
  const live = useSelect((state) => state.threads[threadId]?.live?.id ?? null);
  const attached = useSelect((state) => state.uploads[threadId] ?? NONE);
  const [text, setText] = useDraft(threadId);
  const [isChoosing, setIsChoosing] = useState(false);
  const area = useRef<HTMLTextAreaElement>(null);
  useTextHeight(area, text);
  useEffect(() => {
    uploads.restore(threadId);
    if (matchMedia("(pointer: fine)").matches) area.current?.focus();
  }, [threadId, uploads]);

  const isUploading = attached.some((one) => one.stored === null && one.error === null);
  const files = attached.flatMap((one): FileRef[] => (one.stored ? [one.stored] : []));
  const isEmpty = text.trim() === "" && files.length === 0;
  const canSend = !isEmpty && !isUploading;

  const submit = (ifBusy: IfBusy, steers?: string) => {
    if (isUploading) notices.show(words.composer.waitForUploads);
    if (!canSend) return;
    if (steers && files.length) {
      notices.show(words.composer.steerFiles);
      return;
    }
    // The choice of the first turn becomes that of the conversation, which later turns use.
    const { agentId, model } = threadId === NEW ? choice : { agentId: null, model: null };
    void outbox.send({ text: text.trim(), attachments: files, agentId, model, ifBusy, ...(steers ? { steers } : {}) });
    uploads.attached(threadId);
    setText("");
  };
  // The button disappears with the answer, so the focus goes to the text.
  const stop = () => {
    void threads.stop(threadId);
    if (matchMedia("(pointer: fine)").matches) area.current?.focus();
  };
  const onKeyDown = (event: KeyboardEvent<HTMLTextAreaElement>) => {
    if (event.key === "ArrowUp" && isEmpty && text === "" && !attached.length && !hasModifier(event)) {
      event.preventDefault();
      editLastMessage();
      return;
    }
    if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
    event.preventDefault();
    if (event.altKey && live !== null) submit("enqueue", live);
    else submit((event.ctrlKey || event.metaKey) && busy ? "interrupt" : "enqueue");
  };
  /** The pressed button goes away with the text. */
  const submitAndFocus = (ifBusy: IfBusy, steers?: string) => {
    submit(ifBusy, steers);
    if (matchMedia("(pointer: fine)").matches) area.current?.focus();
  };
  const attach = (files: readonly File[]) => uploads.attach(threadId, files);

  return (
    <>
      <form
        className="composer"
        onSubmit={(event) => {
          event.preventDefault();
          submit("enqueue");
        }}
      >
        <UploadList uploads={attached} />
        <textarea
          id="message"
          dir={text ? "auto" : undefined} // the placeholder is written as the page is
          ref={area}
          rows={1}
          value={text}
          placeholder={busy ? words.composer.busyPlaceholder : words.composer.placeholder}
          aria-label={words.composer.label}
          aria-describedby="message-keys"
          onChange={(event) => setText(event.target.value)}
          onKeyDown={onKeyDown}
          onPaste={pasteHandler(attach)}
        />
        {busy && canSend && (
          <div className="composer-when" role="group" aria-label={words.composer.when}>
            <span>{words.composer.whenQueue}</span>
            {live !== null && files.length === 0 && (
              <button type="button" className="button" onClick={() => submitAndFocus("enqueue", live)} aria-label={words.composer.steer} title={words.composer.steer}>
                <Icon name="steer" />
                {words.composer.steerShort}
              </button>
            )}
            <button type="button" className="button" onClick={() => submitAndFocus("interrupt")} aria-label={words.composer.interrupt} title={words.composer.interrupt}>
              <Icon name="bolt" />
              {words.composer.interruptShort}
            </button>
          </div>
        )}
        <div className="composer-foot">
          <AttachButton onFiles={attach} />
          {!host && <ModelSelects threadId={threadId} choice={choice} onChoice={onChoice} isNew={threadId === NEW} />}
          {!host && threadId === NEW && !busy && <BehaviourButton onOpen={() => setIsChoosing(true)} />}
          <span id="message-keys" className="visually-hidden">
            {live !== null ? words.composer.busyKeys : words.composer.keys}
          </span>
          <span className="composer-gap" />
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
      {isChoosing && (
        <Suspense fallback={null}>
          <BehaviourDialog id={NEW} onClose={() => setIsChoosing(false)} />
        </Suspense>
      )}
    </>
  );
});

const hasModifier = (event: KeyboardEvent): boolean => event.shiftKey || event.ctrlKey || event.metaKey || event.altKey || event.nativeEvent.isComposing;

/** How many frames to wait until the list has drawn its end. */
const MAX_FRAMES = 30;

/** Opens the editor of the last message that can be edited. The list scrolls to it first, if it is not drawn. */
function editLastMessage(frames = 0): void {
  const toEnd = document.querySelector<HTMLElement>(".to-end");
  if (toEnd && frames < MAX_FRAMES) {
    toEnd.click();
    requestAnimationFrame(() => editLastMessage(frames + 1));
    return;
  }
  [...document.querySelectorAll<HTMLElement>('[data-opens="editor"]')].at(-1)?.click();
}

/** The text of the next message, and a function that changes it. */
function useDraft(threadId: string): [string, (text: string) => void] {
  const { drafts } = useServices();
  const text = useSyncExternalStore(drafts.subscribe, () => drafts.get(threadId));
  return [text, (changed) => drafts.set(threadId, changed)];
}

/** What the model is told in the new conversation. Once that exists, its menu has this. */
function BehaviourButton({ onOpen }: { onOpen: () => void }) {
  const { drafts } = useServices();
  const isSet = useSyncExternalStore(drafts.subscribe, () => drafts.behaviour !== null);
  const label = isSet ? words.behaviour.isSet : words.menu.behaviour;
  return (
    <button type="button" className={isSet ? "tool is-pressed" : "tool"} onClick={onOpen} aria-label={label} title={label}>
      <Icon name="gear" />
    </button>
  );
}

/** Makes the field as tall as its text, up to the maximum in the style sheet. */
function useTextHeight(area: React.RefObject<HTMLTextAreaElement | null>, text: string): void {
  useLayoutEffect(() => {
    const element = area.current;
    if (!element || CSS.supports("field-sizing", "content")) return;
    element.style.height = "auto";
    element.style.height = `${element.scrollHeight}px`;
  }, [area, text]);
}

/** Which agent and model answer. In a new conversation the choice belongs to the first turn, later to the conversation. */
function ModelSelects({ threadId, isNew, choice, onChoice }: Props & { isNew: boolean }) {
  const { threads } = useServices();
  const agents = useSelect((state) => state.agents);
  const models = useSelect((state) => state.models);
  const fallback = useSelect((state) => state.me?.model ?? "");
  const conversation = useSelect((state) => state.threads[threadId]?.conversation ?? null);
  const agentId = isNew ? choice.agentId : (conversation?.agent_id ?? null);
  const model = isNew ? choice.model : (conversation?.model ?? null);
  const agent = agents.find((one) => one.id === agentId);
  const names = new Set(models.map((one) => one.id));
  if (model) names.add(model);

  const chooseAgent = (value: string) => {
    if (isNew) onChoice({ ...choice, agentId: value || null });
    else void threads.choose(threadId, { agent_id: value || null });
  };
  const chooseModel = (value: string) => {
    if (isNew) onChoice({ ...choice, model: value || null });
    else void threads.choose(threadId, { model: value || null });
  };
  return (
    <>
      {(agents.length > 0 || agentId) && (
        <span className="choice">
          <select aria-label={words.composer.agent} value={agentId ?? ""} onChange={(event) => chooseAgent(event.target.value)} title={words.composer.agent}>
            <option value="">{words.composer.noAgent}</option>
            {agentId && !agent && <option value={agentId}>{words.composer.agent}</option>}
            {agents.map((one) => (
              <option key={one.id} value={one.id}>
                {one.name}
              </option>
            ))}
          </select>
        </span>
      )}
      <span className="choice">
        <select aria-label={words.composer.model} value={model ?? ""} onChange={(event) => chooseModel(event.target.value)} title={words.composer.model}>
          <option value="">{agent?.model ? words.composer.agentModel : words.composer.defaultModel(fallback)}</option>
          {[...names].map((name) => (
            <option key={name} value={name}>
              {name}
            </option>
          ))}
        </select>
      </span>
    </>
  );
}
