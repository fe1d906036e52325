/** The user's ratings of answers. A rating is shown at once, and taken back if the server refuses it. */
import type { Feedback, Rating } from "@turnkeep/client";
import * as routes from "../wire/routes";
import type { Services } from "./services";

export class Ratings {
  #needs: Pick<Services, "store" | "notices">;
  #loaded = new Set<string>();

  constructor(needs: Pick<Services, "store" | "notices">) {
    this.#needs = needs;
  }

  /** Load the ratings in a conversation, once. Without them the answers are shown as not rated. */
  async load(conversationId: string): Promise<void> {
    if (this.#loaded.has(conversationId)) return;
    this.#loaded.add(conversationId);
    try {
      let cursor: string | null = null;
      do {
        const page: { data: Feedback[]; next_cursor: string | null } = await routes.myFeedback(conversationId, cursor);
        this.#show(Object.fromEntries(page.data.map((one) => [one.turn_id, one])));
        cursor = page.next_cursor;
      } while (cursor !== null);
    } catch {
      this.#loaded.delete(conversationId);
    }
  }

  /** Rate an answer, or change the rating; whether it is stored. */
  async rate(conversationId: string, turnId: string, rating: Rating, comment: string | null): Promise<boolean> {
    const before = this.#needs.store.get().feedback[turnId] ?? null;
    const now = Date.now();
    this.#show({ [turnId]: { turn_id: turnId, conversation_id: conversationId, rating, comment, created_at: before?.created_at ?? now, updated_at: now } });
    return await this.#send(turnId, before, async () => await routes.rate(turnId, { rating, comment }));
  }

  /** Take a rating back. */
  async remove(turnId: string): Promise<void> {
    const before = this.#needs.store.get().feedback[turnId] ?? null;
    this.#show({ [turnId]: null });
    await this.#send(turnId, before, async () => {
      await routes.unrate(turnId);
      return null;
    });
  }

  async #send(turnId: string, before: Feedback | null, send: () => Promise<Feedback | null>): Promise<boolean> {
    try {
      this.#show({ [turnId]: await send() });
      return true;
    } catch (error) {
      this.#show({ [turnId]: before });
      this.#needs.notices.report(error);
      return false;
    }
  }

  #show(feedback: Readonly<Record<string, Feedback | null>>): void {
    this.#needs.store.dispatch({ type: "feedback", feedback });
  }
}
