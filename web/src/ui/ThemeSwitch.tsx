/** The theme of the page: light, dark, or that of the system; stored in this browser. */
import { useState } from "react";

import { readStored, writeStored } from "../effects/storage";
import { words } from "../words";

const THEMES = ["system", "light", "dark"] as const;
type Theme = (typeof THEMES)[number];

const currentTheme = (): Theme => THEMES.find((theme) => theme === readStored<string>("theme")) ?? "system";

export function applyTheme(theme: Theme = currentTheme()): void {
  if (theme === "system") delete document.documentElement.dataset["theme"];
  else document.documentElement.dataset["theme"] = theme;
  writeStored("theme", theme === "system" ? null : theme);
}

export function ThemeSwitch() {
  const [theme, setTheme] = useState(currentTheme);
  const choose = (value: Theme) => {
    applyTheme(value);
    setTheme(value);
  };
  return (
    <span className="choice">
      <select aria-label={words.menu.theme} value={theme} onChange={(event) => choose(event.target.value as Theme)} title={words.menu.theme}>
        {THEMES.map((one) => (
          <option key={one} value={one}>
            {words.menu.themes[one]}
          </option>
        ))}
      </select>
    </span>
  );
}
