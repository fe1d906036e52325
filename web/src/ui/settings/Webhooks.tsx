/** Webhooks: make them, copy the secret once, enable and disable them, and see what was sent. For admins. */
import { useCallback, useState } from "react";

import type { Webhook, WebhookDelivery, WebhookEvent } from "@turnkeep/client";
import { changeWebhook, createWebhook, deleteWebhook, deliveries, redeliver, webhooks } from "../../effects/requests";
import { timeInWords, words } from "../../words";
import { CopyButton } from "../CopyButton";
import { ConfirmButton, Field, SwitchField } from "../forms";
import { ErrorText, LoadStatus, MoreButton, useLoaded, useLoadedList, useSubmit, useUnsaved } from "../requestState";

const EVENTS: readonly WebhookEvent[] = ["turn.succeeded", "turn.failed", "turn.cancelled", "turn.waiting", "conversation.created", "file.created"];

export function Webhooks() {
  const found = useLoaded(webhooks);
  const [created, setCreated] = useState<Webhook | null>(null);
  return (
    <>
      <p className="faint">{words.webhooks.intro}</p>
      {created?.secret ? (
        <section className="card is-new" aria-live="polite">
          <h2>{created.url}</h2>
          <p>{words.webhooks.secretMade}</p>
          <div className="secret">
            <code>{created.secret}</code>
            <CopyButton text={created.secret} label={words.webhooks.copySecret} />
          </div>
          <div className="form-foot">
            <button type="button" className="button is-main" onClick={() => setCreated(null)}>
              {words.settings.keyDone}
            </button>
          </div>
        </section>
      ) : (
        <NewWebhook
          onCreated={(webhook) => {
            setCreated(webhook);
            found.reload();
          }}
        />
      )}
      {found.value ? (
        <ul className="items" aria-label={words.webhooks.list}>
          {found.value.data.map((webhook) => (
            <OneWebhook key={webhook.id} webhook={webhook} onChanged={found.reload} />
          ))}
        </ul>
      ) : (
        <LoadStatus error={found.error} onRetry={found.reload} />
      )}
      {found.value?.data.length === 0 && <p className="faint">{words.webhooks.none}</p>}
    </>
  );
}

function NewWebhook({ onCreated }: { onCreated: (webhook: Webhook) => void }) {
  const [url, setUrl] = useState("");
  const [events, setEvents] = useState<readonly WebhookEvent[]>([]);
  const { isSubmitting, error, submit } = useSubmit();
  useUnsaved(url !== "" || events.length > 0);
  const make = () =>
    submit(async () => {
      onCreated(await createWebhook({ url: url.trim(), events: [...events] }));
    });
  return (
    <form
      className="card"
      onSubmit={(event) => {
        event.preventDefault();
        void make();
      }}
    >
      <h2>{words.webhooks.create}</h2>
      <Field label={words.webhooks.url} hint={words.webhooks.urlHint} type="url" value={url} onChange={setUrl} isRequired />
      <fieldset className="group">
        <legend>{words.webhooks.events}</legend>
        {EVENTS.map((one) => (
          <SwitchField key={one} label={words.webhooks.eventNames[one]} isOn={events.includes(one)} onChange={(isOn) => setEvents(EVENTS.filter((each) => (each === one ? isOn : events.includes(each))))} />
        ))}
      </fieldset>
      <ErrorText text={error} />
      <div className="form-foot">
        <button type="submit" className="button is-main" disabled={isSubmitting || !url.trim() || events.length === 0}>
          {words.webhooks.create}
        </button>
      </div>
    </form>
  );
}

function OneWebhook({ webhook, onChanged }: { webhook: Webhook; onChanged: () => void }) {
  const [showsDeliveries, setShowsDeliveries] = useState(false);
  const { isSubmitting, error, submit } = useSubmit();
  const change = () => void submit(() => changeWebhook(webhook.id, { is_enabled: !webhook.is_enabled })).then(onChanged);
  return (
    <li className={webhook.is_enabled ? "item" : "item is-gone"}>
      <div className="item-text">
        <strong>
          {webhook.url}
          {!webhook.is_enabled && <span className="tag">{words.webhooks.disabled}</span>}
        </strong>
        <span className="faint">{webhook.events.map(inWords).join(" · ")}</span>
        {webhook.disabled_reason && <span className="faint">{webhook.disabled_reason}</span>}
      </div>
      <button type="button" className="button" aria-expanded={showsDeliveries} aria-label={words.webhooks.deliveriesOf(webhook.url)} onClick={() => setShowsDeliveries(!showsDeliveries)}>
        {words.webhooks.deliveries}
      </button>
      <button type="button" className="button" disabled={isSubmitting} aria-label={(webhook.is_enabled ? words.webhooks.disableNamed : words.webhooks.enableNamed)(webhook.url)} onClick={change}>
        {webhook.is_enabled ? words.webhooks.disable : words.webhooks.enable}
      </button>
      <ConfirmButton
        label={words.webhooks.delete}
        ariaLabel={words.webhooks.deleteNamed(webhook.url)}
        question={words.webhooks.deleteSure}
        onConfirm={() => void submit(() => deleteWebhook(webhook.id)).then(onChanged)}
      />
      <ErrorText text={error} />
      {showsDeliveries && <Deliveries webhook={webhook} />}
    </li>
  );
}

function Deliveries({ webhook }: { webhook: Webhook }) {
  const found = useLoadedList(useCallback((cursor: string | null) => deliveries(webhook.id, cursor), [webhook.id]));
  const { isSubmitting, error, submit } = useSubmit();
  if (found.items === null) return <LoadStatus error={found.error} onRetry={found.reload} />;
  return (
    <div className="item-more">
      <ErrorText text={error} />
      {found.items.length === 0 && <p className="faint">{words.webhooks.noDeliveries}</p>}
      <ul className="items" aria-label={words.webhooks.deliveriesOf(webhook.url)}>
        {found.items.map((one) => (
          <li key={one.id} className="item">
            <div className="item-text">
              <strong>
                {one.type}
                <span className="tag">{words.webhooks.statuses[one.status]}</span>
              </strong>
              <span className="faint">{summary(one)}</span>
              {one.error && <span className="faint">{one.error}</span>}
            </div>
            <button
              type="button"
              className="button"
              disabled={isSubmitting}
              aria-label={words.webhooks.redeliverNamed(one.type, timeInWords(one.created_at))}
              onClick={() => void submit(() => redeliver(webhook.id, one.id), words.webhooks.redelivered).then(found.reload)}
            >
              {words.webhooks.redeliver}
            </button>
          </li>
        ))}
      </ul>
      <MoreButton list={found} label={words.webhooks.more} />
      <button type="button" className="button" onClick={found.reload}>
        {words.webhooks.refresh}
      </button>
    </div>
  );
}

/** What an event is called. One that this page does not know keeps its name. */
const inWords = (type: string): string => (words.webhooks.eventNames as Readonly<Partial<Record<string, string>>>)[type] ?? type;

function summary(delivery: WebhookDelivery): string {
  return [
    timeInWords(delivery.created_at),
    words.webhooks.attempts(delivery.attempts),
    delivery.next_attempt_at === null || delivery.status !== "pending" ? "" : words.webhooks.next(timeInWords(delivery.next_attempt_at)),
  ]
    .filter(Boolean)
    .join(" · ");
}
