/** The trash: conversations that were deleted. Each can be restored, or erased before its time. Loaded when it is opened. */
import { useEffect, useState } from "react";

import { deletedConversations } from "../effects/requests";
import { dateInWords, timeInWords, words } from "../words";
import { brandName } from "./Brand";
import { useServices } from "./context";
import { titleOf } from "./ConversationNav";
import { ConfirmButton } from "./forms";
import { Head } from "./Head";
import { ErrorText, LoadStatus, MoreButton, useLoadedList, useSubmit } from "./requestState";

export default function Trash({ onMenu }: { onMenu: () => void }) {
  const { conversations } = useServices();
  const found = useLoadedList(deletedConversations);
  const { isSubmitting, error, submit } = useSubmit();
  /** Those that left the trash since it was loaded. */
  const [gone, setGone] = useState<ReadonlySet<string>>(new Set());
  useEffect(() => {
    document.title = `${words.trash.title} · ${brandName()}`;
  }, []);
  const take = async (id: string, act: () => Promise<void>, done: string) => {
    if (await submit(act, done)) setGone((before) => new Set([...before, id]));
  };
  const shown = found.items?.filter((one) => !gone.has(one.id));
  return (
    <main className="main settings">
      <Head onMenu={onMenu}>
        <h1 className="title">{words.trash.title}</h1>
      </Head>
      <div className="settings-body">
        <p className="faint">{words.trash.intro}</p>
        <ErrorText text={error} />
        {!shown && <LoadStatus error={found.error} onRetry={found.reload} />}
        {shown && !shown.length && !found.more && <p className="faint">{words.trash.none}</p>}
        <ul className="items">
          {shown?.map((one) => {
            const title = titleOf(one);
            return (
              <li key={one.id} className="item">
                <div className="item-text is-wrapped">
                  <strong dir="auto">{title}</strong>
                  <span className="faint">
                    {words.trash.deleted(timeInWords(one.deleted_at ?? 0))} · {words.trash.until(dateInWords(one.purge_at ?? 0))}
                  </span>
                </div>
                <button type="button" className="button" disabled={isSubmitting} aria-label={words.trash.restoreNamed(title)} onClick={() => void take(one.id, () => conversations.recover(one.id), words.trash.restored(title))}>
                  {words.trash.restore}
                </button>
                <ConfirmButton
                  label={words.trash.erase}
                  ariaLabel={words.trash.eraseNamed(title)}
                  question={words.trash.eraseSure}
                  onConfirm={() => void take(one.id, () => conversations.erase(one.id), words.trash.erased(title))}
                />
              </li>
            );
          })}
        </ul>
        <MoreButton list={found} label={words.trash.more} />
      </div>
    </main>
  );
}
