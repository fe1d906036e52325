/** Service keys: make, copy once, revoke. */
import { useState } from "react";

import { createKey, keys, revokeKey } from "../../effects/requests";
import type { Key } from "../../wire/types";
import { dateInWords, words } from "../../words";
import { CopyButton } from "../CopyButton";
import { ConfirmButton, Field } from "../forms";
import { ErrorText, LoadStatus, useLoaded, useSubmit } from "../requests";
import { numberOf } from "./Usage";

export function Keys() {
  const found = useLoaded(keys);
  const [made, setMade] = useState<Key | null>(null);
  return (
    <>
      <p className="faint">{words.settings.keysIntro}</p>
      {made?.key ? (
        <section className="card is-new" aria-live="polite">
          <h2>{made.name}</h2>
          <p>{words.settings.keyMade}</p>
          <div className="secret">
            <code>{made.key}</code>
            <CopyButton text={made.key} label={words.settings.copyKey} />
          </div>
          <div className="form-foot">
            <button type="button" className="button is-main" onClick={() => setMade(null)}>
              {words.settings.keyDone}
            </button>
          </div>
        </section>
      ) : (
        <NewKey
          onMade={(key) => {
            setMade(key);
            found.reload();
          }}
        />
      )}
      {found.value ? <KeyList all={found.value.data} onRevoked={found.reload} /> : <LoadStatus error={found.error} onRetry={found.reload} />}
    </>
  );
}

function NewKey({ onMade }: { onMade: (key: Key) => void }) {
  const [name, setName] = useState("");
  const [monthly, setMonthly] = useState("");
  const [rate, setRate] = useState("");
  const { isSubmitting, error, submit } = useSubmit();
  const make = () =>
    submit(async () => {
      onMade(await createKey({ name: name.trim(), monthly_message_limit: numberOf(monthly), requests_per_minute: numberOf(rate), allowed_tools: null }));
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
              <span className="faint">{gist(key)}</span>
            </div>
            {!key.revoked_at && (
              <ConfirmButton
                label={words.settings.revoke}
                ariaLabel={words.settings.revokeNamed(key.name)}
                question={words.settings.revokeSure}
                onSure={() => void submit(() => revokeKey(key.id)).then(onRevoked)}
              />
            )}
          </li>
        ))}
      </ul>
    </>
  );
}

function gist(key: Key): string {
  return [
    words.settings.keyCreated(dateInWords(key.created_at)),
    key.revoked_at ? words.settings.keyRevoked(dateInWords(key.revoked_at)) : "",
    key.monthly_message_limit === null ? "" : words.settings.perMonth(key.monthly_message_limit),
    key.requests_per_minute === null ? "" : words.settings.perMinute(key.requests_per_minute),
  ]
    .filter(Boolean)
    .join(" · ");
}
