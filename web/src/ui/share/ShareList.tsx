/** Share links, each with a button that ends it. `names` says whose conversations they show. */
import type { Share } from "@turnkeep/client";
import { revokeShare } from "../../effects/requests";
import { timeInWords, words } from "../../words";
import { ConfirmButton } from "../forms";
import { RouteLink } from "../RouteLink";
import { ErrorText, useSubmit } from "../requestState";

export function ShareList({ all, onChanged, myId }: { all: readonly Share[]; onChanged: () => void; myId?: string | null }) {
  const { error, submit } = useSubmit();
  return (
    <>
      <ErrorText text={error} />
      <ul className="items">
        {all.map((share) => {
          const made = timeInWords(share.created_at);
          return (
            <li key={share.id} className="item">
              <div className="item-text is-wrapped">
                <strong dir="auto">{myId === undefined ? words.share.shared(made) : <ShareTitle share={share} isMine={share.user?.id === myId} />}</strong>
                <span className="faint">
                  {[myId === undefined ? null : words.share.shared(made), words.share.until(timeInWords(share.expires_at)), share.with_files ? words.share.files : null].filter(Boolean).join(" · ")}
                </span>
              </div>
              <ConfirmButton label={words.share.revoke} ariaLabel={words.share.revokeNamed(made)} question={words.share.revokeSure} onConfirm={() => void submit(() => revokeShare(share.id)).then(onChanged)} />
            </li>
          );
        })}
      </ul>
    </>
  );
}

/** The title of one's own conversation leads to it. Of those of others only the name of the user is known. */
function ShareTitle({ share, isMine }: { share: Share; isMine: boolean }) {
  if (!isMine && share.user) return <>{words.share.of(share.user.name ?? share.user.external_id)}</>;
  return <RouteLink route={{ page: "chat", conversationId: share.conversation_id }}>{share.title ?? words.share.untitled}</RouteLink>;
}
