/** All share links: those of the user, or for an admin those of the workspace. */
import { useCallback } from "react";

import { shares } from "../../effects/requests";
import { words } from "../../words";
import { longestShareDays } from "../Brand";
import { useSelect } from "../context";
import { LoadStatus, MoreButton, useLoadedList } from "../requestState";
import { ShareList } from "../share/ShareList";

export function Shares({ isAdmin }: { isAdmin: boolean }) {
  const myId = useSelect((state) => state.me?.user_id ?? null);
  const found = useLoadedList(useCallback((cursor: string | null) => shares(null, cursor), []));
  return (
    <>
      <p className="faint">{isAdmin ? words.share.introAdmin : words.share.intro}</p>
      {longestShareDays() === 0 && <p role="note">{words.share.off}</p>}
      {found.items ? <ShareList all={found.items} onChanged={found.reload} myId={myId} /> : <LoadStatus error={found.error} onRetry={found.reload} />}
      {found.items?.length === 0 && <p className="faint">{words.share.none}</p>}
      <MoreButton list={found} label={words.share.more} />
    </>
  );
}
