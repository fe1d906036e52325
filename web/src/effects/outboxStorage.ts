/** What this browser keeps of an outbox, so that a reload loses nothing. */
import { type OutgoingMessage, queuedIn, type Thread } from "@turnkeep/client";
import type { State } from "../state/state";
import { perTab, readStored, writeStored } from "./storage";

/** Messages that the server has not accepted yet, and the user who wrote them. */
interface Unsent {
  sender: string;
  unsent: { id: string; outgoing: OutgoingMessage }[];
}

/**
 * Messages that are being sent are sent again after a reload of this tab, under the same key. Messages that the server has
 * refused stay in their conversation, also if the tab is closed: all tabs show them. `seen` are the keys of the messages
 * that this page has had: what it does not have any more was sent or taken back.
 */
export function saveUnsent(state: State, seen: Set<string>): void {
  const all = Object.values(state.threads).flatMap((thread) => thread.outbox.map((outgoing) => ({ id: thread.id, outgoing })));
  for (const { outgoing } of all) seen.add(outgoing.key);
  const ofOtherTabs = read(state, "refused").filter(({ outgoing }) => !seen.has(outgoing.key));
  write(state, "unsent", all.filter(({ outgoing }) => outgoing.status === "sending"), perTab);
  write(state, "refused", [...ofOtherTabs, ...all.filter(({ outgoing }) => outgoing.status === "refused")]);
}

/** The unsent messages of this user. Those of another user are deleted: this user must neither send nor see them. */
export function loadUnsent(state: State): Unsent["unsent"] {
  const unsent = read(state, "unsent", perTab);
  const keys = new Set(unsent.map(({ outgoing }) => outgoing.key));
  return [...unsent, ...read(state, "refused").filter(({ outgoing }) => !keys.has(outgoing.key))];
}

function read(state: State, name: string, area?: typeof perTab): Unsent["unsent"] {
  const stored = readStored<Unsent>(name, area);
  if (stored?.sender === senderOf(state)) return stored.unsent;
  writeStored(name, null, area);
  return [];
}

function write(state: State, name: string, unsent: Unsent["unsent"], area?: typeof perTab): void {
  writeStored(name, unsent.length ? { sender: senderOf(state), unsent } : null, area);
}

const senderOf = ({ me }: State): string => `${me?.workspace_id ?? ""}/${me?.user_id ?? ""}`;

/** The server lists what is queued, but not that a message takes the place of another one or steers a turn. This browser keeps that. */
export function saveQueued(id: string, thread: Thread | undefined): void {
  const branches = queuedIn(thread).filter((one) => one.branch || one.steers);
  // Other tabs read this too. There the message has the key of one that another page sent.
  writeStored(`queued:${id}`, branches.length ? branches.map((one) => ({ ...one, key: one.turn_id })) : null);
}

export const loadQueued = (id: string): OutgoingMessage[] => readStored<OutgoingMessage[]>(`queued:${id}`) ?? [];
