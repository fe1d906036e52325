/** Small things that this browser keeps for itself: drafts, the theme, and which branch was open last. */

const PREFIX = "turnkeep:";

export function keep(name: string, value: unknown): void {
  try {
    if (value === null || value === undefined || value === "") localStorage.removeItem(PREFIX + name);
    else localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // A full or forbidden storage costs a draft after a reload, nothing else.
  }
}

export function kept<Value>(name: string): Value | null {
  try {
    const text = localStorage.getItem(PREFIX + name);
    return text === null ? null : (JSON.parse(text) as Value);
  } catch {
    return null;
  }
}
