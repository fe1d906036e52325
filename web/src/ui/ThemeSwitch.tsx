import { useState } from "react";

import { words } from "../words";
import { applyTheme, currentTheme, type Theme, THEMES } from "./theme";

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
