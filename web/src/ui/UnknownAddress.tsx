/** An address at which there is nothing: inside of the page for a user who is signed in, else as a page of its own. */
import { useEffect } from "react";

import { words } from "../words";
import { brandName, Mark } from "./Brand";
import { Head } from "./Head";
import { RouteLink } from "./RouteLink";

export function UnknownAddress({ onMenu }: { onMenu?: () => void }) {
  useEffect(() => {
    document.title = `${words.unknown.title} · ${brandName()}`;
  }, []);
  const text = (
    <>
      <p>{words.unknown.explanation}</p>
      <p>
        <RouteLink route={{ page: "chat", conversationId: null }}>{words.unknown.home}</RouteLink>
      </p>
    </>
  );
  if (!onMenu)
    return (
      <main className="signin">
        <Mark />
        <h1>{words.unknown.title}</h1>
        {text}
      </main>
    );
  return (
    <main className="main">
      <Head onMenu={onMenu} />
      <div className="unknown">
        <h1>{words.unknown.title}</h1>
        {text}
      </div>
    </main>
  );
}
