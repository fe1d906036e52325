/** People: invite them, give them a role, disable them, and end their sessions. For admins. */
import { useCallback, useState } from "react";

import type { Invite, User } from "@turnkeep/client";
import { changeUser, createInvite, deleteInvite, endUserSession, endUserSessions, invites, users, userSessions } from "../../effects/requests";
import { timeInWords, words } from "../../words";
import { CopyButton } from "../CopyButton";
import { useSelect } from "../context";
import { ConfirmButton, Field, SelectField } from "../forms";
import { ErrorText, LoadStatus, MoreButton, useLoaded, useLoadedList, useSubmit } from "../requestState";
import { SessionList } from "./SessionList";

const HOUR = 3_600;
const VALIDITIES = [4 * HOUR, 72 * HOUR, 720 * HOUR] as const;

export function People() {
  const open = useLoaded(invites);
  const [query, setQuery] = useState("");
  const found = useLoadedList(useCallback((cursor: string | null) => users(query.trim(), cursor), [query]));
  const [created, setCreated] = useState<Invite | null>(null);
  return (
    <>
      <p className="faint">{words.people.intro}</p>
      {created?.url ? (
        <section className="card is-new" aria-live="polite">
          <h2>{words.people.linkFor(created.user.name ?? created.user.external_id)}</h2>
          <p>{words.people.linkMade(timeInWords(created.expires_at))}</p>
          <div className="secret">
            <code>{created.url}</code>
            <CopyButton text={created.url} label={words.people.copyLink} />
          </div>
          <div className="form-foot">
            <button type="button" className="button is-main" onClick={() => setCreated(null)}>
              {words.settings.keyDone}
            </button>
          </div>
        </section>
      ) : (
        <InviteForm
          onCreated={(invite) => {
            setCreated(invite);
            open.reload();
            found.reload();
          }}
        />
      )}
      {open.value && open.value.data.length > 0 && <OpenInvites all={open.value.data} onChanged={open.reload} />}
      <Field label={words.people.search} value={query} onChange={setQuery} />
      {found.items ? (
        <ul className="items" aria-label={words.people.list}>
          {found.items.map((user) => (
            <Person key={user.id} user={user} onChanged={found.reload} />
          ))}
        </ul>
      ) : (
        <LoadStatus error={found.error} onRetry={found.reload} />
      )}
      {found.items?.length === 0 && <p className="faint">{words.people.none}</p>}
      <MoreButton list={found} label={words.people.more} />
    </>
  );
}

function InviteForm({ onCreated }: { onCreated: (invite: Invite) => void }) {
  const [id, setId] = useState("");
  const [name, setName] = useState("");
  const [role, setRole] = useState<"member" | "admin">();
  const [seconds, setSeconds] = useState<number>(VALIDITIES[1]);
  const { isSubmitting, error, submit } = useSubmit();
  const invite = () =>
    submit(async () => {
      onCreated(await createInvite({ user: id.trim(), name: name.trim() || null, ...(role && { role }), ttl_seconds: seconds }));
    });
  return (
    <form
      className="card"
      onSubmit={(event) => {
        event.preventDefault();
        void invite();
      }}
    >
      <h2>{words.people.invite}</h2>
      <div className="field-row">
        <Field label={words.people.id} hint={words.people.idHint} value={id} onChange={setId} isRequired />
        <Field label={words.people.name} value={name} onChange={setName} />
      </div>
      <div className="field-row">
        <SelectField label={words.people.role} value={role ?? ""} onChange={(value) => setRole(value === "admin" || value === "member" ? value : undefined)}>
          <option value="">{words.people.roles.unchanged}</option>
          <option value="member">{words.people.roles.member}</option>
          <option value="admin">{words.people.roles.admin}</option>
        </SelectField>
        <SelectField label={words.people.validity} value={String(seconds)} onChange={(value) => setSeconds(Number(value))}>
          {VALIDITIES.map((one, place) => (
            <option key={one} value={one}>
              {words.people.validities[place]}
            </option>
          ))}
        </SelectField>
      </div>
      <ErrorText text={error} />
      <div className="form-foot">
        <button type="submit" className="button is-main" disabled={isSubmitting || !id.trim()}>
          {words.people.makeLink}
        </button>
      </div>
    </form>
  );
}

function OpenInvites({ all, onChanged }: { all: readonly Invite[]; onChanged: () => void }) {
  const { error, submit } = useSubmit();
  return (
    <section>
      <h2 className="section-title">{words.people.open}</h2>
      <ErrorText text={error} />
      <ul className="items">
        {all.map((invite) => (
          <li key={invite.id} className="item">
            <div className="item-text">
              <strong>{invite.user.name ?? invite.user.external_id}</strong>
              <span className="faint">{words.people.openUntil(timeInWords(invite.expires_at))}</span>
            </div>
            <ConfirmButton
              label={words.people.takeBack}
              ariaLabel={words.people.takeBackNamed(invite.user.name ?? invite.user.external_id)}
              question={words.people.takeBackSure}
              onConfirm={() => void submit(() => deleteInvite(invite.id)).then(onChanged)}
            />
          </li>
        ))}
      </ul>
    </section>
  );
}

function Person({ user, onChanged }: { user: User; onChanged: () => void }) {
  const isMe = useSelect((state) => state.me?.user_id === user.id);
  const [showsSessions, setShowsSessions] = useState(false);
  const { isSubmitting, error, submit } = useSubmit();
  const shown = user.name ?? user.external_id;
  const change = (body: { role?: "member" | "admin"; is_disabled?: boolean }) => void submit(() => changeUser(user.id, body)).then(onChanged);
  return (
    <li className={user.is_disabled ? "item is-gone" : "item"}>
      <div className="item-text">
        <strong>
          {shown}
          {isMe && <span className="tag">{words.people.you}</span>}
          {user.is_disabled && <span className="tag">{words.people.disabled}</span>}
        </strong>
        <span className="faint">{user.external_id}</span>
      </div>
      <select
        aria-label={words.people.roleOf(shown)}
        className="item-choice"
        value={user.role}
        disabled={isMe || isSubmitting}
        onChange={(event) => change({ role: event.target.value === "admin" ? "admin" : "member" })}
      >
        <option value="member">{words.people.roles.member}</option>
        <option value="admin">{words.people.roles.admin}</option>
      </select>
      <button type="button" className="button" aria-expanded={showsSessions} aria-label={words.people.sessionsOf(shown)} onClick={() => setShowsSessions(!showsSessions)}>
        {words.people.sessions}
      </button>
      {!isMe &&
        (user.is_disabled ? (
          <button type="button" className="button" disabled={isSubmitting} aria-label={words.people.enableNamed(shown)} onClick={() => change({ is_disabled: false })}>
            {words.people.enable}
          </button>
        ) : (
          <ConfirmButton label={words.people.disable} ariaLabel={words.people.disableNamed(shown)} question={words.people.disableSure} onConfirm={() => change({ is_disabled: true })} />
        ))}
      <ErrorText text={error} />
      {showsSessions && <SessionsOf user={user} />}
    </li>
  );
}

function SessionsOf({ user }: { user: User }) {
  const found = useLoaded(useCallback(() => userSessions(user.id), [user.id]));
  const { error, submit } = useSubmit();
  return (
    <div className="item-more">
      <ErrorText text={error} />
      {found.value ? <SessionList all={found.value.data} onEnd={(id) => submit(() => endUserSession(user.id, id)).then(found.reload)} /> : <LoadStatus error={found.error} onRetry={found.reload} />}
      {(found.value?.data.length ?? 0) > 1 && (
        <ConfirmButton label={words.people.endAll} ariaLabel={words.people.endAll} question={words.people.endAllSure} onConfirm={() => void submit(() => endUserSessions(user.id)).then(found.reload)} />
      )}
    </div>
  );
}
