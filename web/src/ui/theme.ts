/** Light, dark, or as the system has it; kept in this browser. */
import { keep, kept } from "../effects/kept";

export const THEMES = ["system", "light", "dark"] as const;
export type Theme = (typeof THEMES)[number];

export const currentTheme = (): Theme => THEMES.find((theme) => theme === kept<string>("theme")) ?? "system";

export function applyTheme(theme: Theme = currentTheme()): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  keep("theme", theme === "system" ? null : theme);
}
