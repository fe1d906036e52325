/** A conversation beside the form of an agent. Each question is answered with the settings in the form, saved or not. */
import { useEffect, useRef, useState } from "react";

import { isBusy, type NewAgent } from "@turnkeep/client";
import { tryAgent } from "../../effects/requests";
import { words } from "../../words";
import { useSelect, useServices } from "../context";
import { Icon } from "../Icon";
import { ErrorText, useSubmit } from "../requestState";
import { MessageList } from "../thread/MessageList";

interface Props {
  /** The saved agent, whose secrets the form does not show. */
  agentId: string | null;
  /** The settings of the form, or a text about what is wrong in them. */
  spec: () => NewAgent | string;
  starters: readonly string[];
  onClose: () => void;
}

export function AgentTrial({ agentId, spec, starters, onClose }: Props) {
  const { threads } = useServices();
  const [conversationId, setConversationId] = useState<string | null>(null);
  const [text, setText] = useState("");
  const { isSubmitting, error, submit, setError } = useSubmit();
  const thread = useSelect((state) => (conversationId === null ? undefined : state.threads[conversationId]));
  const area = useRef<HTMLTextAreaElement>(null);
  useEffect(() => area.current?.focus(), []);
  useEffect(() => (conversationId === null ? undefined : threads.openBeside(conversationId)), [conversationId, threads]);
  const busy = isSubmitting || isBusy(thread);
  const ask = async (message: string) => {
    if (!message.trim() || busy) return;
    const agent = spec();
    if (typeof agent === "string") return setError(agent);
    const isAsked = await submit(async () => {
      const accepted = await tryAgent({ agent: { ...agent, name: agent.name || words.settings.trialName }, agent_id: agentId, conversation_id: conversationId, message: message.trim() });
      setConversationId(accepted.conversation_id);
      await threads.refresh(accepted.conversation_id);
    });
    if (isAsked) setText("");
  };
  return (
    <aside className="trial" aria-label={words.settings.trial}>
      <div className="trial-head">
        <h2>{words.settings.trial}</h2>
        {conversationId !== null && (
          <button type="button" className="button" onClick={() => setConversationId(null)}>
            {words.settings.trialAgain}
          </button>
        )}
        <button type="button" className="tool" onClick={onClose} aria-label={words.settings.trialClose} title={words.settings.trialClose}>
          <Icon name="close" />
        </button>
      </div>
      {thread && (thread.messages.length > 0 || thread.live) ? (
        <MessageList key={thread.id} thread={thread} passage={undefined} />
      ) : (
        <div className="trial-empty">
          <p className="faint">{words.settings.trialHint}</p>
          {starters.length > 0 && (
            <ul className="ideas">
              {starters.map((idea) => (
                <li key={idea}>
                  <button type="button" className="idea" dir="auto" onClick={() => void ask(idea)}>
                    {idea}
                  </button>
                </li>
              ))}
            </ul>
          )}
        </div>
      )}
      <ErrorText text={error} />
      <form
        className="composer"
        onSubmit={(event) => {
          event.preventDefault();
          void ask(text);
        }}
      >
        <textarea
          ref={area}
          dir="auto"
          rows={1}
          value={text}
          placeholder={words.settings.trialPlaceholder}
          aria-label={words.settings.trialMessage}
          onChange={(event) => setText(event.target.value)}
          onKeyDown={(event) => {
            if (event.key !== "Enter" || event.shiftKey || event.nativeEvent.isComposing) return;
            event.preventDefault();
            void ask(text);
          }}
        />
        <div className="composer-foot">
          <span className="composer-gap" />
          {thread?.live ? (
            <button type="button" className="send is-stop" onClick={() => void threads.stop(thread.id)} aria-label={words.composer.stop} title={words.composer.stop}>
              <Icon name="stop" />
            </button>
          ) : (
            <button type="submit" className="send" disabled={busy || !text.trim()} aria-label={words.composer.send} title={words.composer.send}>
              <Icon name="send" />
            </button>
          )}
        </div>
      </form>
    </aside>
  );
}
