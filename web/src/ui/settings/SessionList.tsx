/** Browsers that are signed in, each with a button that ends its session. */
import type { PageSession } from "@turnkeep/client";
import { browserInWords, timeInWords, words } from "../../words";
import { ConfirmButton } from "../forms";

export function SessionList({ all, onEnd }: { all: readonly PageSession[]; onEnd: (id: string) => Promise<unknown> }) {
  if (!all.length) return <p className="faint">{words.account.noSessions}</p>;
  return (
    <ul className="items">
      {all.map((session) => (
        <li key={session.id} className="item">
          <div className="item-text is-wrapped">
            <strong title={session.browser}>
              {browserInWords(session.browser)}
              {session.is_current && <span className="tag">{words.account.thisBrowser}</span>}
            </strong>
            <span className="faint">
              {words.account.since(timeInWords(session.created_at), words.account.methods[session.method as keyof typeof words.account.methods] ?? session.method)}
            </span>
            <span className="faint">{words.account.until(timeInWords(session.last_used_at), timeInWords(session.expires_at))}</span>
          </div>
          {!session.is_current && (
            <ConfirmButton
              label={words.account.end}
              ariaLabel={words.account.endNamed(browserInWords(session.browser))}
              question={words.account.endSure}
              onConfirm={() => void onEnd(session.id)}
            />
          )}
        </li>
      ))}
    </ul>
  );
}
