/** Every language has every text, in its own words, with the names and numbers that the English text has. */
import { afterEach, describe, expect, test } from "vitest";

import { LANGUAGES, type Language } from "../src/effects/language";
import { words as arabic } from "../src/languages/arabic";
import { words as chinese } from "../src/languages/chinese";
import { words as french } from "../src/languages/french";
import { words as german } from "../src/languages/german";
import { words as spanish } from "../src/languages/spanish";
import { countInWords, english, speak, type Words } from "../src/words";

const TRANSLATIONS: Record<Exclude<Language, "en">, Words> = { de: german, fr: french, es: spanish, zh: chinese, ar: arabic };

/** Texts that are the same in some languages. */
const SAME = {
  all: ["product", "settings.columnHints.text", "settings.columnHints.boolean"],
  de: ["account.name", "people.name", "people.roles.admin", "webhooks.list", "composer.agent", "settings.sections.webhooks", "settings.workspaceName", "settings.agentName", "settings.toolName", "settings.mcpName", "settings.skills", "settings.keyName", "settings.pageContent", "feedback.list", "thread.code", "files.plain", "timeline.agent", "timeline.kinds.tool", "timeline.said", "usage.person", "usage.agent", "usage.limits", "settings.sections.feedback", "settings.chat", "settings.tableName", "settings.columnName", "settings.columnTypes.text"],
  fr: ["account.sessions", "people.sessions", "people.roles.admin", "webhooks.list", "conversations.label", "thread.label", "thread.assistant", "thread.system", "thread.sources", "thread.source", "thread.stepArguments", "wait.arguments", "source.label", "source.kinds.page", "source.conversation", "composer.label", "composer.agent", "settings.sections.agents", "settings.sections.pages", "settings.sections.webhooks", "settings.messages", "settings.agentDescription", "settings.agentInstructions", "shared.question", "behaviour.instructions", "notify.title", "thread.agents", "thread.code", "exported.roles.assistant", "exported.roles.system", "exported.fileName", "timeline.agent", "timeline.args", "timeline.note", "timeline.system", "timeline.messages", "usage.agent", "usage.measures.messages", "settings.tableDescription", "settings.columnTypes.date"],
  es: ["people.roles.admin", "webhooks.list", "thread.tokenCount", "thread.stepError", "units.bytes", "timeline.tokens", "timeline.problem", "usage.measures.tokens", "settings.sections.webhooks", "settings.no", "settings.notSure"],
  zh: [],
  ar: [],
};
/** The names of keys are those of the keyboards of a language, and often the English ones. */
const isKeyName = (path: string) => /^keys\.list\.\d+\.0$/.test(path);

/** What no language translates. */
const NAMES = /search_pages|search_user_tables|SKILL\.md|NAME=value|https:\S+\w|sign in”|\b(?:JSON|CSV|MCP|HTTP|API|PDF|Markdown|Office)\b/g;

/** Signs that belong to the typography of other languages. */
const FOREIGN: Record<Exclude<Language, "en">, RegExp> = {
  de: /["'”«»]|[^\s{]…|\w …/,
  fr: /["'“”„]| [;:!?%»]|« |[^\s?]\?$|[\p{L}\p{N}][;!»]|«\S/u,
  es: /["'“”„]|« | »|(?<!¿[^?]*)\?(?!,)/,
  zh: /["'„«»]|\p{Script=Han}[,.:;?!()]|[,.:;?!()]\p{Script=Han}/u,
  ar: /["'“”„]|\p{Script=Arabic}[,;?]/u,
};

type Leaf = string | ((...given: unknown[]) => string);

/** Each text and each function of a tree, by the path to it: "keys.list.0.1". */
function leaves(tree: unknown, path: string[] = []): [string, Leaf][] {
  if (typeof tree === "string" || typeof tree === "function") return [[path.join("."), tree as Leaf]];
  return Object.entries(tree as object).flatMap(([key, inner]) => leaves(inner, [...path, key]));
}

/** Functions whose arguments are more than texts and numbers. They have tests of their own. */
const SPECIAL = ["wait.decided", "wait.who", "source.part"];
const DECISIONS = ([null, "allow", "deny"] as const).flatMap((decision) =>
  ["sending", "sent"].flatMap((status) =>
    [{}, { isOthers: true }, { by: "MARK" }, { reason: "WHY" }, { by: "MARK", reason: "WHY", isEdited: true }, { isEdited: true }, { isRemembered: true }].map((given) => ({ decision, status, ...given })),
  ),
);

const MARKS = ["MARK", "NOTE", "SIGN"];
const COUNTS = [3, 11, 100, 1_103, 1_000_000];

/** What a function says for texts, and for numbers: both work for names and for counts. */
function results(say: (...given: unknown[]) => string): { given: string[]; said: string }[] {
  const texts = MARKS.slice(0, say.length);
  const numbers = COUNTS.map((count) => texts.map((_, at) => count + at));
  return [{ given: texts, said: say(...texts) }, ...numbers.map((given) => ({ given: given.map(countInWords), said: say(...given) }))];
}

/** Whether a text has this name, or this number: "1,102" or "1102". */
const has = (said: string, mark: string) => said.includes(mark) || said.includes(mark.replaceAll(/[^\p{L}\p{N}]/gu, ""));

afterEach(() => speak("en"));

test("every language that can be chosen is here", () => {
  expect(Object.keys(TRANSLATIONS).sort()).toEqual(Object.keys(LANGUAGES).filter((language) => language !== "en").sort());
});

describe.each(Object.entries(TRANSLATIONS) as [Exclude<Language, "en">, Words][])("%s", (language, words) => {
  const own = new Map(leaves(words));
  const both = leaves(english).map(([path, said]) => [path, said, own.get(path)] as const);

  test("has every text, and no other", () => {
    expect([...own.keys()].sort()).toEqual(leaves(english).map(([path]) => path).sort());
    expect(both.filter(([, first, second]) => typeof first !== typeof second || (typeof first === "function" && first.length !== (second as Leaf).length)).map(([path]) => path)).toEqual([]);
  });

  test("says something, in its own words", () => {
    speak(language, words);
    const texts = [...own].flatMap(([path, said]): [string, string][] => (typeof said === "string" ? [[path, said]] : SPECIAL.includes(path) ? [] : results(said).map((one): [string, string] => [path, one.said])));
    const empty = both.flatMap(([path, first]) => (first === "" ? [path] : []));
    expect(texts.filter(([path, said]) => (!said.trim() && !empty.includes(path)) || said !== said.trim() || /undefined|null|\[object/.test(said))).toEqual([]);

    const same = both.filter(([path, first, second]) => !SPECIAL.includes(path) && !isKeyName(path) && (typeof first === "string" ? first === second : first(...MARKS) === (second as (...given: unknown[]) => string)(...MARKS)));
    expect(same.map(([path]) => path).filter((path) => ![...SAME.all, ...SAME[language]].includes(path))).toEqual([]);
  });

  test("names what the English text names", () => {
    for (const [path, first, second] of both) {
      if (typeof first !== "string") continue;
      const names = (first.match(NAMES) ?? []).map((name) => name.replace("”", ""));
      expect(names.filter((name) => !(second as string).includes(name)), path).toEqual([]);
    }
  });

  test("keeps the names and numbers that a text is made of", () => {
    for (const [path, first, second] of both) {
      if (typeof first === "string" || SPECIAL.includes(path)) continue;
      speak("en");
      const expected = results(first);
      speak(language, words);
      const found = results(second as (...given: unknown[]) => string);
      expect(found.length, path).toBe(expected.length);
      found.forEach(({ given, said }, at) => {
        const wanted = given.filter((_, which) => has(expected[at]?.said ?? "", expected[at]?.given[which] ?? ""));
        expect(wanted.filter((mark) => !has(said, mark)), `${path}: ${said}`).toEqual([]);
      });
    }
  });

  test("counts in its own forms", () => {
    speak(language, words);
    const counts = { de: [1, 2], fr: [1, 2, 1_000_000], es: [1, 2, 1_000_000], zh: [1], ar: [1, 2, 3, 11] }[language]; // each has another form
    for (const say of [words.webhooks.attempts, words.conversations.found, words.settings.skillFiles, words.settings.rowCount, words.settings.perMonth, words.settings.perMinute]) {
      const said = counts.map((count) => say(count).replaceAll(/\p{N}[\p{N}.,\s]*/gu, "# "));
      expect(new Set(said).size, said.join("; ")).toBe(counts.length);
    }
  });

  test("says who decided about a call, how and why", () => {
    for (const given of DECISIONS) {
      const [first, second] = [english.wait.decided(given), words.wait.decided(given)];
      expect(second).not.toBe(first);
      expect(["MARK", "WHY"].filter((mark) => first.includes(mark) && !second.includes(mark)), second).toEqual([]);
    }
    const different = (all: Words) => new Set(DECISIONS.map((given) => all.wait.decided(given))).size;
    expect(different(words)).toBe(different(english));
    expect(words.wait.who(true)).not.toBe(words.wait.who(false));
    expect([words.wait.who(true), words.wait.who(false)]).not.toContain(english.wait.who(true));
  });

  test("names the parts of files", () => {
    for (const unit of ["page", "slide", "sheet"]) expect(words.source.part(unit, 3)).toMatch(/3/);
    expect(new Set(["page", "slide", "sheet"].map((unit) => words.source.part(unit, 3))).size).toBe(3);
    expect(words.source.part("slide", 3)).not.toContain("slide");
  });

  test("is written with the signs of its own", () => {
    const texts = [...own].filter(([path]) => !isKeyName(path)).map(([path, said]): [string, string] => [path, typeof said === "string" ? said : SPECIAL.includes(path) ? "" : said(...MARKS)]);
    expect(texts.filter(([, said]) => FOREIGN[language].test(said.replaceAll(/https:\S+\w|\{ … \}|NAME=value/g, "")))).toEqual([]);
  });
});
