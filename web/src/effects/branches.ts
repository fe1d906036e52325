/** Versions of a conversation: questions that are edited, answers that are given again, and the way from one to another. */
import { wordsOf } from "../state/content";
import { attachmentIds, editSlot } from "../state/editing";
import { threadId } from "../state/select";
import type { Store } from "../state/store";
import type { Outgoing, Thread } from "../state/thread";
import * as routes from "../wire/routes";
import type { FileRef, IfBusy, Message } from "../wire/types";
import { keep, kept } from "./kept";
import type { Office } from "./office";
import type { Tabs } from "./tabs";
import type { Uploads } from "./uploads";

/** What branches need of the desk that asks and follows. */
export interface Turns extends Office {
  insist<Answer>(asked: () => Promise<Answer>, isWanted: () => boolean): Promise<Answer>;
  follow(id: string, turnId: string): void;
  wait(id: string, outgoing: Outgoing): void;
  refresh(id: string): Promise<void>;
}

type Asked = Pick<Outgoing, "beside" | "text" | "attachments" | "if_busy">;

interface Wish {
  /** Whether the turn shall stay, once the server has taken it. */
  isWanted: () => boolean;
  /** Whether to ask again where nobody answered. */
  isAwaited: () => boolean;
}

export class Branches {
  #store: Store;
  #tabs: Tabs;
  #uploads: Uploads;
  #turns: Turns;
  /** Turns whose question is about to be answered again: a second click must not ask twice. */
  #asking = new Set<string>();
  #openings = 0;

  constructor(store: Store, tabs: Tabs, uploads: Uploads, turns: Turns) {
    this.#store = store;
    this.#tabs = tabs;
    this.#uploads = uploads;
    this.#turns = turns;
  }

  edit(id: string, question: Message): void {
    this.#openings += 1;
    const changes = { text: wordsOf(question.content), files: question.attachments, isSending: false, opening: this.#openings };
    this.#store.dispatch({ type: "thread/editing", id, turn_id: question.turn_id, changes });
  }

  rewrite(id: string, turnId: string, text: string): void {
    this.#store.dispatch({ type: "thread/editing", id, turn_id: turnId, changes: { text } });
  }

  dropFile(id: string, turnId: string, fileId: string): void {
    const files = this.#thread(id)?.edits[turnId]?.files.filter((file) => file.file_id !== fileId);
    if (files) this.#store.dispatch({ type: "thread/editing", id, turn_id: turnId, changes: { files } });
  }

  attach(id: string, turnId: string, files: readonly File[]): void {
    const editing = this.#thread(id)?.edits[turnId];
    // What is on its way takes no more files, and those that were added would go with the editor.
    if (editing?.isSending) return;
    this.#uploads.attach(editSlot(turnId), files, { conversationId: id, taken: editing?.files.length ?? 0 });
  }

  /** Nothing happened. An edit that is on its way is stopped where it arrives; its files may be part of a message then. */
  giveUp(id: string, turnId: string): void {
    if (this.#thread(id)?.edits[turnId]?.isSending) this.#uploads.attached(editSlot(turnId));
    for (const one of this.#store.get().attaching[editSlot(turnId)] ?? []) this.#uploads.detach(one.key);
    this.#store.dispatch({ type: "thread/edited", id, turn_id: turnId });
  }

  /** Send the edit. It stays as it is until the server has taken it, so that nothing is lost if it is refused. */
  async send(id: string, turnId: string, ifBusy: IfBusy): Promise<void> {
    const editing = this.#thread(id)?.edits[turnId];
    if (!editing || editing.isSending) return;
    const added = (this.#store.get().attaching[editSlot(turnId)] ?? []).flatMap((one): FileRef[] => (one.stored ? [one.stored] : []));
    const files = [...editing.files, ...added];
    const text = editing.text.trim();
    const body = { message: text, if_busy: ifBusy, ...attachmentIds(this.#question(id, turnId), files) };
    const isOpen = () => this.#thread(id)?.edits[turnId]?.opening === editing.opening;
    this.#store.dispatch({ type: "thread/editing", id, turn_id: turnId, changes: { isSending: true } });
    const asked: Asked = { beside: "edit", text, attachments: files, if_busy: ifBusy };
    const isTaken = await this.#beside(id, turnId, asked, { isWanted: isOpen, isAwaited: isOpen }, (key) => routes.edit(id, turnId, body, key));
    if (isTaken) {
      this.#uploads.attached(editSlot(turnId));
      this.#store.dispatch({ type: "thread/edited", id, turn_id: turnId });
    } else if (isOpen()) this.#store.dispatch({ type: "thread/editing", id, turn_id: turnId, changes: { isSending: false } });
  }

  /** Have the question answered again. */
  async again(id: string, turnId: string, ifBusy: IfBusy): Promise<void> {
    if (this.#asking.has(turnId)) return;
    this.#asking.add(turnId);
    const question = this.#question(id, turnId);
    const asked: Asked = { beside: "again", text: question ? wordsOf(question.content) : "", attachments: question?.attachments ?? [], if_busy: ifBusy };
    // No row shows that it is being asked for: once its conversation is left, nobody waits for a server that does not answer.
    const wish = { isWanted: () => true, isAwaited: () => this.#isInView(id) };
    await this.#beside(id, turnId, asked, wish, (key) => routes.regenerate(id, turnId, { if_busy: ifBusy }, key));
    this.#asking.delete(turnId);
  }

  /** Show another branch, where it was left: a turn alone names only the beginning of its branch. */
  async show(id: string, fromTurnId: string, toTurnId: string): Promise<void> {
    this.#rememberLeaf(id, fromTurnId);
    const leaf = kept<string>(`leaf:${toTurnId}`) ?? toTurnId;
    try {
      await routes.changeConversation(id, { head_turn_id: leaf });
      await this.#turns.refresh(id);
      this.#tabs.tell({ kind: "changed", conversationId: id });
    } catch (error) {
      this.#turns.complain(error);
    }
  }

  async #beside(id: string, turnId: string, asked: Asked, { isWanted, isAwaited }: Wish, ask: (key: string) => Promise<{ turn_id: string }>): Promise<boolean> {
    const key = crypto.randomUUID();
    try {
      const accepted = await this.#turns.insist(() => ask(key), isAwaited);
      if (!isWanted()) {
        await routes.cancel(accepted.turn_id);
        await this.#turns.refresh(id);
        return false;
      }
      this.#rememberLeaf(id, turnId);
      this.#accepted(id, turnId, accepted.turn_id, asked, key);
      return true;
    } catch (error) {
      if (isWanted()) this.#turns.complain(error);
      return false;
    }
  }

  /** It takes its place at once, or once the answer that is being written has ended; until then it waits with the others. */
  #accepted(id: string, turnId: string, newTurnId: string, asked: Asked, key: string): void {
    const edited = asked.beside === "edit" ? { text: asked.text, files: asked.attachments } : null;
    if (this.#thread(id)?.live)
      this.#turns.wait(id, { ...asked, key, agent_id: null, model: null, status: "queued", turn_id: newTurnId, error: null, created_at: Date.now() });
    else {
      this.#store.dispatch({ type: "thread/beside", id, turn_id: turnId, new_turn_id: newTurnId, edited });
      // There is one stream, and it belongs to the thread in view. Another one is followed when it is opened.
      if (this.#isInView(id)) this.#turns.follow(id, newTurnId);
    }
    this.#tabs.tell({ kind: "asked", conversationId: id });
  }

  #rememberLeaf(id: string, turnId: string): void {
    const last = this.#thread(id)?.messages.at(-1)?.turn_id;
    if (last && last !== turnId) keep(`leaf:${turnId}`, last);
  }

  #isInView(id: string): boolean {
    return threadId(this.#store.get()) === id;
  }

  #thread(id: string): Thread | undefined {
    return this.#store.get().threads[id];
  }

  #question(id: string, turnId: string): Message | undefined {
    return this.#thread(id)?.messages.find((message) => message.turn_id === turnId && message.role === "user");
  }
}
