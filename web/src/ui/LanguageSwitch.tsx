/** The language of the page: one that it speaks, or that of the browser. */
import { chooseLanguage, chosenLanguage, type Language, LANGUAGES } from "../effects/language";
import { words } from "../words";

export function LanguageSwitch() {
  return (
    <span className="choice">
      <select
        aria-label={words.menu.language}
        title={words.menu.language}
        value={chosenLanguage() ?? ""}
        onChange={(event) => chooseLanguage((event.target.value || null) as Language | null)}
      >
        <option value="">{words.menu.languageOfBrowser}</option>
        {Object.entries(LANGUAGES).map(([language, name]) => (
          <option key={language} value={language} lang={language}>
            {name}
          </option>
        ))}
      </select>
    </span>
  );
}
