/** Light, dark, or as the system has it; kept in this browser. */
import { readStored, writeStored } from "../effects/storage";

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export const currentTheme = (): Theme => THEMES.find((theme) => theme === readStored<string>("theme")) ?? "system";

export function applyTheme(theme: Theme = currentTheme()): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  writeStored("theme", theme === "system" ? null : theme);
}
