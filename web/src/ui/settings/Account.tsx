/** The user's own account: who they are, sign-out, and the browsers in which they are signed in. */
import { useState } from "react";

import { endMySession, endOtherSessions, mySessions } from "../../effects/requests";
import { words } from "../../words";
import { useSelect, useServices } from "../context";
import { ConfirmButton, SwitchField } from "../forms";
import { LanguageSwitch } from "../LanguageSwitch";
import { ErrorText, LoadStatus, useLoaded, useSubmit } from "../requestState";
import { SessionList } from "./SessionList";

export function Account() {
  const { session, notifications, notices } = useServices();
  const [isNotified, setIsNotified] = useState(notifications.isOn);
  const me = useSelect((state) => state.me);
  const found = useLoaded(mySessions);
  const { error, submit } = useSubmit();
  const others = found.value?.data.filter((one) => !one.is_current) ?? [];
  return (
    <>
      {me && (
        <section className="card" aria-labelledby="who">
          <h2 id="who">{words.account.title}</h2>
          <dl className="facts">
            <dt>{words.account.name}</dt>
            <dd>{me.user?.name ?? me.user?.external_id ?? words.account.key}</dd>
            <dt>{words.account.externalId}</dt>
            <dd>{me.user?.external_id ?? "—"}</dd>
            <dt>{words.account.role}</dt>
            <dd>{words.people.roles[me.role === "member" ? "member" : "admin"]}</dd>
            <dt>{words.menu.language}</dt>
            <dd>
              <LanguageSwitch />
            </dd>
          </dl>
          <ErrorText text={error} />
          <div className="form-foot">
            <button type="button" className="button" onClick={() => void submit(() => session.signOut())}>
              {words.account.signOut}
            </button>
          </div>
        </section>
      )}
      {notifications.isSupported && (
        <section className="card" aria-labelledby="notify">
          <h2 id="notify">{words.notify.title}</h2>
          <SwitchField
            label={words.notify.label}
            hint={words.notify.hint}
            isOn={isNotified}
            onChange={(isOn) =>
              void notifications.turn(isOn).then((isNow) => {
                setIsNotified(isNow);
                if (isOn && !isNow) notices.show(words.notify.refused, "error");
              })
            }
          />
        </section>
      )}
      <div className="intro">
        <div>
          <h2>{words.account.sessions}</h2>
          <p className="faint">{words.account.sessionsIntro}</p>
        </div>
        {others.length > 0 && (
          <ConfirmButton label={words.account.endOthers} ariaLabel={words.account.endOthers} question={words.account.endOthersSure} onConfirm={() => void submit(endOtherSessions).then(found.reload)} />
        )}
      </div>
      {found.value ? <SessionList all={found.value.data} onEnd={(id) => submit(() => endMySession(id)).then(found.reload)} /> : <LoadStatus error={found.error} onRetry={found.reload} />}
    </>
  );
}
