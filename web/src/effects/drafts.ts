/** The text of the next message of each thread, and the behaviour of the next conversation, stored in this browser until they are sent. */
import type { Behaviour } from "@turnkeep/client";
import { readStored, writeStored } from "./storage";

export class Drafts {
  #texts = new Map<string, string>();
  #behaviour: Behaviour | null | undefined;
  #listeners = new Set<() => void>();

  get(id: string): string {
    const known = this.#texts.get(id);
    if (known !== undefined) return known;
    const text = readStored<string>(`draft:${id}`) ?? "";
    this.#texts.set(id, text);
    return text;
  }

  set(id: string, text: string): void {
    this.#texts.set(id, text);
    writeStored(`draft:${id}`, text);
    this.#changed();
  }

  /** What the new conversation will have; null if nothing was chosen. It stays until the conversation is created. */
  get behaviour(): Behaviour | null {
    if (this.#behaviour === undefined) this.#behaviour = readStored<Behaviour>("behaviour");
    return this.#behaviour;
  }

  setBehaviour(chosen: Behaviour | null): void {
    const isChosen = chosen !== null && (chosen.instructions !== null || chosen.temperature !== null);
    this.#behaviour = isChosen ? chosen : null;
    writeStored("behaviour", this.#behaviour);
    this.#changed();
  }

  /** Put the text of a message that is not sent before what the user has written since. */
  giveBack(id: string, text: string): void {
    this.set(id, [text, this.get(id)].filter((each) => each.trim() !== "").join("\n\n"));
  }

  /** The new conversation has an id: the text of its next message moves to it. */
  move(from: string, to: string): void {
    const text = this.get(from);
    this.set(from, "");
    if (text) this.set(to, text);
  }

  subscribe = (listener: () => void): (() => void) => {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  };

  #changed(): void {
    for (const listener of this.#listeners) listener();
  }
}
