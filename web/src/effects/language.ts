/**
 * The language of the page: the one that was chosen in this browser, or else the first of the browser's own that the page
 * speaks. The texts of a language other than English are loaded when they are needed.
 */
import { speak, type Words } from "../words";
import { readStored, writeStored } from "./storage";

/** Each language by its own name. */
export const LANGUAGES = { en: "English", de: "Deutsch", fr: "Français", es: "Español", zh: "中文", ar: "العربية" } as const;
export type Language = keyof typeof LANGUAGES;

const TRANSLATIONS: Record<Exclude<Language, "en">, () => Promise<{ words: Words }>> = {
  de: () => import("../languages/german"),
  fr: () => import("../languages/french"),
  es: () => import("../languages/spanish"),
  zh: () => import("../languages/chinese"),
  ar: () => import("../languages/arabic"),
};

const RIGHT_TO_LEFT: readonly Language[] = ["ar"];

/** The language that was chosen, or null: then that of the browser is spoken. */
export const chosenLanguage = (): Language | null => known(readStored<string>("language") ?? "");

/** Remember a language for this browser (null: that of the browser), and show the page in it. Nothing that was typed is lost. */
export function chooseLanguage(language: Language | null): void {
  writeStored("language", language);
  location.reload();
}

/** Call it before anything is shown. `wanted` is asked for by the page around a chat. Without the texts it is English. */
export async function applyLanguage(wanted: string | null = null): Promise<void> {
  let language = known(wanted ?? "") ?? chosenLanguage() ?? ofBrowser();
  try {
    if (language !== "en") speak(language, (await TRANSLATIONS[language]()).words);
  } catch {
    language = "en"; // the file could not be loaded, and English is here already
  }
  document.documentElement.lang = language;
  document.documentElement.dir = RIGHT_TO_LEFT.includes(language) ? "rtl" : "ltr";
}

const ofBrowser = (): Language => navigator.languages.map(known).find((language) => language !== null) ?? "en";

/** "de-AT" → "de"; null for a language that the page does not speak. */
function known(tag: string): Language | null {
  const [language = ""] = tag.toLowerCase().split("-");
  return language in LANGUAGES ? (language as Language) : null;
}
