/** The share links of a conversation: make one, copy it, and end those that there are. */
import { useCallback, useRef, useState } from "react";

import type { Share } from "@turnkeep/client";
import { createShare, shares } from "../../effects/requests";
import { timeInWords, words } from "../../words";
import { longestShareDays } from "../Brand";
import { CopyButton } from "../CopyButton";
import { Dialog } from "../Dialog";
import { SelectField, SwitchField } from "../forms";
import { ErrorText, LoadStatus, MoreButton, useLoadedList, useSubmit } from "../requestState";
import { ShareList } from "./ShareList";

const DAYS = [1, 7, 30, 90, 365];
const USUAL_DAYS = 30;
const DAY_SECONDS = 86_400;

export default function ShareDialog({ conversationId, onClose }: { conversationId: string; onClose: () => void }) {
  const dialog = useRef<HTMLDialogElement>(null);
  const found = useLoadedList(useCallback((cursor: string | null) => shares(conversationId, cursor), [conversationId]));
  const [made, setMade] = useState<Share | null>(null);
  return (
    <Dialog dialog={dialog} id="share" title={words.share.title} onClose={onClose}>
      <div className="share-body">
        {made?.url ? (
          <section className="share-made" aria-live="polite">
            <p>{words.share.made(timeInWords(made.expires_at))}</p>
            <div className="secret">
              <code>{made.url}</code>
              <CopyButton text={made.url} label={words.share.copy} />
            </div>
            <div className="form-foot">
              <button type="button" className="button" onClick={() => setMade(null)}>
                {words.share.another}
              </button>
            </div>
          </section>
        ) : (
          <ShareForm
            conversationId={conversationId}
            onMade={(share) => {
              setMade(share);
              found.reload();
            }}
          />
        )}
        {found.items === null ? (
          <LoadStatus error={found.error} onRetry={found.reload} />
        ) : (
          found.items.length > 0 && (
            <section>
              <h3>{words.share.list}</h3>
              <ShareList all={found.items} onChanged={found.reload} />
              <MoreButton list={found} label={words.share.more} />
            </section>
          )
        )}
      </div>
    </Dialog>
  );
}

function ShareForm({ conversationId, onMade }: { conversationId: string; onMade: (share: Share) => void }) {
  const longest = longestShareDays();
  const offered = DAYS.filter((days) => days <= longest);
  const choices = offered.length ? offered : [longest];
  const [days, setDays] = useState(choices.includes(USUAL_DAYS) ? USUAL_DAYS : (choices.at(-1) ?? longest));
  const [withFiles, setWithFiles] = useState(false);
  const { isSubmitting, error, submit } = useSubmit();
  const make = () =>
    submit(async () => {
      onMade(await createShare(conversationId, { with_files: withFiles, ttl_seconds: Math.max(60, Math.round(days * DAY_SECONDS)) }));
    });
  return (
    <form
      className="share-form"
      onSubmit={(event) => {
        event.preventDefault();
        void make();
      }}
    >
      <p className="faint">{words.share.explanation}</p>
      <SelectField label={words.share.validity} value={String(days)} onChange={(value) => setDays(Number(value))}>
        {choices.map((one) => (
          <option key={one} value={one}>
            {words.share.days(one)}
          </option>
        ))}
      </SelectField>
      <SwitchField label={words.share.withFiles} hint={words.share.withFilesHint} isOn={withFiles} onChange={setWithFiles} />
      <ErrorText text={error} />
      <div className="form-foot">
        <button type="submit" className="button is-main" disabled={isSubmitting}>
          {words.share.make}
        </button>
      </div>
    </form>
  );
}
