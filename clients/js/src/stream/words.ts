/**
 * Events → words, each of them once, also where the model says the same text again. The words of an iteration are previews
 * until its event has the whole text. After a reset the model speaks again: while the new text is the beginning of what was
 * given, nothing is given.
 */
import type { StreamEvent } from "./events.js";

/** Words of the answer. Drop the last `dropped` characters first: usually none, but the model may have begun anew. */
export interface Words {
  readonly text: string;
  readonly dropped: number;
}

export class WordReader {
  #given: string;
  /** The new text after a reset, until it is longer than the old one or differs. */
  #said: string | null = null;
  #isCut: boolean;

  /** `given` was read before. `isCut`: the stream begins inside of a text whose beginning is not known. */
  constructor(given = "", isCut = false) {
    this.#given = given;
    this.#isCut = isCut;
  }

  /** The words that this event adds; null if there are none. */
  read(event: StreamEvent): Words | null {
    switch (event.type) {
      case "delta":
        return event.kind === "text" ? this.#speak(event.text) : null;
      case "reset":
        this.#said = "";
        this.#isCut = false;
        return null;
      case "tool_calls":
        return this.#complete(event.text);
      case "result":
        return this.#complete(event.message);
      default:
        return null;
    }
  }

  #speak(text: string): Words | null {
    if (this.#said === null) {
      this.#given += text;
      return { text, dropped: 0 };
    }
    this.#said += text;
    if (this.#given.startsWith(this.#said)) return null;
    const words = difference(this.#given, this.#said);
    this.#given = this.#said;
    this.#said = null;
    return words;
  }

  #complete(text: string): Words | null {
    const words = this.#isCut ? null : difference(this.#given, text);
    this.#given = "";
    this.#said = null;
    this.#isCut = false;
    return words;
  }
}

function difference(given: string, text: string): Words | null {
  if (!text.startsWith(given)) return { text, dropped: given.length };
  return text.length > given.length ? { text: text.slice(given.length), dropped: 0 } : null;
}
