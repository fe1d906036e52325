/** Small values that this browser keeps: drafts, the theme, the language, the newest turn of each branch, and messages that are not sent yet. */
import { isEmbedded } from "./addresses";

/** The user of an embedded chat is another one than that of the page, in the same browser. */
const PREFIX = isEmbedded ? "turnkeep-embed:" : "turnkeep:";

/** A function, because a browser that forbids storage throws when it is asked for it. */
type Area = () => Storage;
/** Shared by all tabs, until the value is removed. */
const shared: Area = () => localStorage;
/** Of this tab alone, until it is closed. */
export const perTab: Area = () => sessionStorage;

/** Store the value; null, undefined and the empty text remove it. */
export function writeStored(name: string, value: unknown, area: Area = shared): void {
  try {
    if (value === null || value === undefined || value === "") area().removeItem(PREFIX + name);
    else area().setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // A full or forbidden storage costs a draft after a reload, nothing else.
  }
}

const OF_THE_BROWSER = [`${PREFIX}theme`, `${PREFIX}language`];

/** Remove what belongs to a user: everything but the theme and the language. */
export function forgetStored(): void {
  for (const area of [shared, perTab])
    try {
      const names = Object.keys(area()).filter((name) => name.startsWith(PREFIX) && !OF_THE_BROWSER.includes(name));
      for (const name of names) area().removeItem(name);
    } catch {
      // A forbidden storage holds nothing.
    }
}

export function readStored<Value>(name: string, area: Area = shared): Value | null {
  try {
    const text = area().getItem(PREFIX + name);
    return text === null ? null : (JSON.parse(text) as Value);
  } catch {
    return null;
  }
}
