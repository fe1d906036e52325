/** What this browser keeps of an outbox, so that a reload loses nothing. */
import { queuedIn } from "../state/queue";
import type { State } from "../state/state";
import type { OutgoingMessage, Thread } from "../state/thread";
import { perTab, readStored, writeStored } from "./storage";

/** Messages that the server has not accepted yet, and the user who wrote them. */
interface Unsent {
  sender: string;
  unsent: { id: string; outgoing: OutgoingMessage }[];
}

/** They are sent again after a reload of this tab, under the same key. */
export function saveUnsent(state: State): void {
  const all = Object.values(state.threads).flatMap((thread) => thread.outbox.map((outgoing) => ({ id: thread.id, outgoing })));
  const unsent = all.filter(({ outgoing }) => outgoing.status !== "queued");
  writeStored("unsent", unsent.length ? { sender: senderOf(state), unsent } : null, perTab);
}

/** The unsent messages of this user. Those of another user are deleted: this user must neither send nor see them. */
export function loadUnsent(state: State): Unsent["unsent"] {
  const stored = readStored<Unsent>("unsent", perTab);
  if (stored?.sender === senderOf(state)) return stored.unsent;
  writeStored("unsent", null, perTab);
  return [];
}

const senderOf = ({ me }: State): string => `${me?.workspace_id ?? ""}/${me?.user_id ?? ""}`;

/** The server lists what is queued, but not that a message takes the place of another one. This browser keeps that. */
export function saveQueued(id: string, thread: Thread | undefined): void {
  const branches = queuedIn(thread).filter((one) => one.branch);
  // Other tabs read this too. There the message has the key of one that another page sent.
  writeStored(`queued:${id}`, branches.length ? branches.map((one) => ({ ...one, key: one.turn_id })) : null);
}

export const loadQueued = (id: string): OutgoingMessage[] => readStored<OutgoingMessage[]>(`queued:${id}`) ?? [];
