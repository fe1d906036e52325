/** A turn of another user that waits for an admin: only its card. Its address is sent to an admin, who cannot see the conversation. */
import { lazy, Suspense, useEffect } from "react";

import { words } from "../words";
import { brandName } from "./Brand";
import { useSelect } from "./context";
import { Head } from "./Head";

const WaitView = lazy(() => import("./thread/WaitView"));

export function TurnView({ turnId, onMenu }: { turnId: string; onMenu: () => void }) {
  const thread = useSelect((state) => state.threads[turnId]);
  const live = thread?.status === "missing" ? null : (thread?.live ?? null);
  useEffect(() => {
    document.title = `${words.wait.page} · ${brandName()}`;
  }, []);
  return (
    <main className="main">
      <Head onMenu={onMenu}>
        <h1 className="title">{words.wait.page}</h1>
      </Head>
      <div className="turn-view">
        {live?.wait ? (
          <div className="row">
            <Suspense>
              <WaitView threadId={turnId} turn={live} />
            </Suspense>
          </div>
        ) : (
          <p className="centered" role="status">
            {!thread || (thread.status === "loading" && !live) ? words.settings.loading : words.wait.over}
          </p>
        )}
      </div>
    </main>
  );
}
