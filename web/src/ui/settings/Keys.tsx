/** Service keys: create, copy once, revoke. */
import { useState } from "react";

import type { Key } from "@turnkeep/client";
import { createKey, keys, revokeKey } from "../../effects/requests";
import { dateInWords, words } from "../../words";
import { CopyButton } from "../CopyButton";
import { ConfirmButton, Field } from "../forms";
import { ErrorText, LoadStatus, useLoaded, useSubmit, useUnsaved } from "../requestState";
import { limitFromText } from "./WorkspaceForm";

export function Keys() {
  const found = useLoaded(keys);
  const [created, setCreated] = useState<Key | null>(null);
  return (
    <>
      <p className="faint">{words.settings.keysIntro}</p>
      {created?.key ? (
        <section className="card is-new" aria-live="polite">
          <h2>{created.name}</h2>
          <p>{words.settings.keyMade}</p>
          <div className="secret">
            <code>{created.key}</code>
            <CopyButton text={created.key} label={words.settings.copyKey} />
          </div>
          <div className="form-foot">
            <button type="button" className="button is-main" onClick={() => setCreated(null)}>
              {words.settings.keyDone}
            </button>
          </div>
        </section>
      ) : (
        <NewKey
          onCreated={(key) => {
            setCreated(key);
            found.reload();
          }}
        />
      )}
      {found.value ? <KeyList all={found.value.data} onRevoked={found.reload} /> : <LoadStatus error={found.error} onRetry={found.reload} />}
    </>
  );
}

function NewKey({ onCreated }: { onCreated: (key: Key) => void }) {
  const [name, setName] = useState("");
  const [monthly, setMonthly] = useState("");
  const [rate, setRate] = useState("");
  const { isSubmitting, error, submit } = useSubmit();
  useUnsaved(name + monthly + rate !== "");
  const make = () =>
    submit(async () => {
      onCreated(await createKey({ name: name.trim(), monthly_message_limit: limitFromText(monthly), requests_per_minute: limitFromText(rate), allowed_tools: null }));
    });
  return (
    <form
      className="card"
      onSubmit={(event) => {
        event.preventDefault();
        void make();
      }}
    >
      <h2>{words.settings.newKey}</h2>
      <Field label={words.settings.keyName} value={name} onChange={setName} isRequired />
      <div className="field-row">
        <Field label={words.settings.keyMonthly} hint={words.settings.limitHint} type="number" value={monthly} onChange={setMonthly} />
        <Field label={words.settings.keyRate} hint={words.settings.limitHint} type="number" value={rate} onChange={setRate} />
      </div>
      <ErrorText text={error} />
      <div className="form-foot">
        <button type="submit" className="button is-main" disabled={isSubmitting || !name.trim()}>
          {words.settings.newKey}
        </button>
      </div>
    </form>
  );
}

function KeyList({ all, onRevoked }: { all: readonly Key[]; onRevoked: () => void }) {
  const { error, submit } = useSubmit();
  if (!all.length) return <p className="faint">{words.settings.noKeys}</p>;
  return (
    <>
      <ErrorText text={error} />
      <ul className="items">
        {all.map((key) => (
          <li key={key.id} className={key.revoked_at ? "item is-gone" : "item"}>
            <div className="item-text">
              <strong>{key.name}</strong>
              <span className="faint">{summary(key)}</span>
            </div>
            {!key.revoked_at && (
              <ConfirmButton
                label={words.settings.revoke}
                ariaLabel={words.settings.revokeNamed(key.name)}
                question={words.settings.revokeSure}
                onConfirm={() => void submit(() => revokeKey(key.id)).then(onRevoked)}
              />
            )}
          </li>
        ))}
      </ul>
    </>
  );
}

function summary(key: Key): string {
  return [
    words.settings.keyCreated(dateInWords(key.created_at)),
    key.revoked_at ? words.settings.keyRevoked(dateInWords(key.revoked_at)) : "",
    key.monthly_message_limit === null ? "" : words.settings.perMonth(key.monthly_message_limit),
    key.requests_per_minute === null ? "" : words.settings.perMinute(key.requests_per_minute),
  ]
    .filter(Boolean)
    .join(" · ");
}
