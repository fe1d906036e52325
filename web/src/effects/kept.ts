/** Small things that this browser keeps for itself: drafts, the theme, which branch was open last, and, in its tab, what is not sent yet. */

const PREFIX = "turnkeep:";

/** In all tabs until it is removed, or in this one until it is closed. A function, since asking for a forbidden storage raises. */
type Where = () => Storage;
const everywhere: Where = () => localStorage;
export const inThisTab: Where = () => sessionStorage;

export function keep(name: string, value: unknown, where: Where = everywhere): void {
  try {
    if (value === null || value === undefined || value === "") where().removeItem(PREFIX + name);
    else where().setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // A full or forbidden storage costs a draft after a reload, nothing else.
  }
}

export function kept<Value>(name: string, where: Where = everywhere): Value | null {
  try {
    const text = where().getItem(PREFIX + name);
    return text === null ? null : (JSON.parse(text) as Value);
  } catch {
    return null;
  }
}
