/** Branches of a conversation: edit a message, regenerate an answer, and switch between the versions. */
import { attachmentIds, editUploadKey, type FileRef, type IfBusy, type Message, messageText, type OutgoingMessage, type Thread } from "@turnkeep/client";
import * as routes from "../wire/routes";
import type { Services } from "./services";
import { readStored, writeStored } from "./storage";

export type BranchNeeds = Pick<Services, "store" | "tabs" | "uploads"> & {
  connection: Pick<Services["connection"], "retry">;
  notices: Pick<Services["notices"], "report">;
  threads: Pick<Services["threads"], "follow" | "isInView" | "refresh">;
  outbox: Pick<Services["outbox"], "addQueued">;
};

type BranchTurn = Pick<OutgoingMessage, "branch" | "text" | "attachments" | "if_busy">;

interface Conditions {
  /** Whether the turn stays once the server has accepted it. Otherwise it is cancelled. */
  isWanted: () => boolean;
  /** Whether to repeat the request if the server does not answer. */
  isAwaited: () => boolean;
}

export class Branches {
  #needs: BranchNeeds;
  /** Turns that are being regenerated: a second click must not send a second request. */
  #regenerating = new Set<string>();
  #openings = 0;

  constructor(needs: BranchNeeds) {
    this.#needs = needs;
  }

  openEdit(id: string, question: Message): void {
    this.#openings += 1;
    const changes = { text: messageText(question.content), files: question.attachments, isSending: false, opening: this.#openings };
    this.#needs.store.dispatch({ type: "edit/changed", id, turn_id: question.turn_id, changes });
  }

  changeText(id: string, turnId: string, text: string): void {
    this.#needs.store.dispatch({ type: "edit/changed", id, turn_id: turnId, changes: { text } });
  }

  removeFile(id: string, turnId: string, fileId: string): void {
    const files = this.#thread(id)?.edits[turnId]?.files.filter((file) => file.file_id !== fileId);
    if (files) this.#needs.store.dispatch({ type: "edit/changed", id, turn_id: turnId, changes: { files } });
  }

  attachFiles(id: string, turnId: string, files: readonly File[]): void {
    const editing = this.#thread(id)?.edits[turnId];
    // An edit that is being sent takes no more files: they would be lost when the editor closes.
    if (editing?.isSending) return;
    this.#needs.uploads.attach(editUploadKey(turnId), files, { taken: editing?.files.length ?? 0 });
  }

  /** Close the editor without a change. If the edit is being sent, its turn is cancelled, and its files may belong to that turn. */
  closeEdit(id: string, turnId: string): void {
    if (this.#thread(id)?.edits[turnId]?.isSending) this.#needs.uploads.attached(editUploadKey(turnId));
    for (const one of this.#needs.store.get().uploads[editUploadKey(turnId)] ?? []) this.#needs.uploads.detach(one.key);
    this.#needs.store.dispatch({ type: "edit/closed", id, turn_id: turnId });
  }

  /** Send the edit. The editor stays open until the server has accepted it, so that nothing is lost if it is refused. */
  async sendEdit(id: string, turnId: string, ifBusy: IfBusy): Promise<void> {
    const editing = this.#thread(id)?.edits[turnId];
    if (!editing || editing.isSending) return;
    const added = (this.#needs.store.get().uploads[editUploadKey(turnId)] ?? []).flatMap((one): FileRef[] => (one.stored ? [one.stored] : []));
    const files = [...editing.files, ...added];
    const text = editing.text.trim();
    const body = { message: text, if_busy: ifBusy, ...attachmentIds(this.#question(id, turnId), files) };
    const isOpen = () => this.#thread(id)?.edits[turnId]?.opening === editing.opening;
    this.#needs.store.dispatch({ type: "edit/changed", id, turn_id: turnId, changes: { isSending: true } });
    const turn: BranchTurn = { branch: "edit", text, attachments: files, if_busy: ifBusy };
    const isTaken = await this.#start(id, turnId, turn, { isWanted: isOpen, isAwaited: isOpen }, (key) => routes.edit(id, turnId, body, key));
    if (isTaken) {
      this.#needs.uploads.attached(editUploadKey(turnId));
      this.#needs.store.dispatch({ type: "edit/closed", id, turn_id: turnId });
    } else if (isOpen()) this.#needs.store.dispatch({ type: "edit/changed", id, turn_id: turnId, changes: { isSending: false } });
  }

  /** Have the question answered again, as a new version of the answer. */
  async regenerate(id: string, turnId: string, ifBusy: IfBusy): Promise<void> {
    if (this.#regenerating.has(turnId)) return;
    this.#regenerating.add(turnId);
    const question = this.#question(id, turnId);
    const turn: BranchTurn = { branch: "regenerate", text: question ? messageText(question.content) : "", attachments: question?.attachments ?? [], if_busy: ifBusy };
    // Nothing on the page shows this request. Once the user has left the conversation, it is not repeated any more.
    const conditions = { isWanted: () => true, isAwaited: () => this.#isInView(id) };
    await this.#start(id, turnId, turn, conditions, (key) => routes.regenerate(id, turnId, { if_busy: ifBusy }, key));
    this.#regenerating.delete(turnId);
  }

  /** Show another branch, at the newest turn that was shown of it: the given turn is only the first of its branch. */
  async show(id: string, fromTurnId: string, toTurnId: string): Promise<void> {
    this.#saveNewestTurn(id, fromTurnId);
    const leaf = readStored<string>(`leaf:${toTurnId}`) ?? toTurnId;
    try {
      await routes.changeConversation(id, { head_turn_id: leaf });
      await this.#needs.threads.refresh(id);
      this.#needs.tabs.post({ kind: "conversation", conversationId: id });
    } catch (error) {
      this.#needs.notices.report(error);
    }
  }

  async #start(id: string, turnId: string, turn: BranchTurn, { isWanted, isAwaited }: Conditions, send: (key: string) => Promise<{ turn_id: string }>): Promise<boolean> {
    const key = crypto.randomUUID();
    try {
      const accepted = await this.#needs.connection.retry(() => send(key), isAwaited);
      if (!isWanted()) {
        await routes.cancel(accepted.turn_id);
        await this.#needs.threads.refresh(id);
        return false;
      }
      this.#saveNewestTurn(id, turnId);
      this.#accepted(id, turnId, accepted.turn_id, turn, key);
      return true;
    } catch (error) {
      if (isWanted()) this.#needs.notices.report(error);
      return false;
    }
  }

  /** The new turn takes the place of the old one at once, or waits in the queue while another answer is written. */
  #accepted(id: string, turnId: string, newTurnId: string, turn: BranchTurn, key: string): void {
    const edited = turn.branch === "edit" ? { text: turn.text, files: turn.attachments } : null;
    if (this.#thread(id)?.live)
      this.#needs.outbox.addQueued(id, { ...turn, key, agent_id: null, model: null, status: "queued", turn_id: newTurnId, error: null, created_at: Date.now() });
    else {
      this.#needs.store.dispatch({ type: "branch/started", id, turn_id: turnId, new_turn_id: newTurnId, edited, now: Date.now() });
      // The one stream of this tab belongs to the thread in view. Another thread is followed when it is opened.
      if (this.#isInView(id)) this.#needs.threads.follow(id, newTurnId);
    }
    this.#needs.tabs.post({ kind: "conversation", conversationId: id });
  }

  #saveNewestTurn(id: string, turnId: string): void {
    const last = this.#thread(id)?.messages.at(-1)?.turn_id;
    if (last && last !== turnId) writeStored(`leaf:${turnId}`, last);
  }

  #isInView(id: string): boolean {
    return this.#needs.threads.isInView(id);
  }

  #thread(id: string): Thread | undefined {
    return this.#needs.store.get().threads[id];
  }

  #question(id: string, turnId: string): Message | undefined {
    return this.#thread(id)?.messages.find((message) => message.turn_id === turnId && message.role === "user");
  }
}
