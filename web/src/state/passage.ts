/**
 * Finds a cited passage in a text. The quote comes from the Markdown source, with joined spaces and `…` at its ends; the
 * text is the drawn one. So words are compared, and small gaps are allowed.
 */

export interface Span {
  readonly start: number;
  readonly end: number;
}

interface Word extends Span {
  readonly text: string;
}

/** Scripts that are written without spaces: there every character counts as a word. */
const UNSPACED = "\\p{Script=Han}\\p{Script=Hiragana}\\p{Script=Katakana}\\p{Script=Thai}";
const WORD = new RegExp(`[${UNSPACED}]|(?:(?![${UNSPACED}])[\\p{L}\\p{M}\\p{N}])+`, "gu");
/** The most words between two that match: the URL of a link, the marks of a table. */
const GAP = 8;
/** A shorter match proves nothing, unless it is the whole quote. */
const MIN_CHARS = 12;
const MAX_WORDS = 200;

/** The part of `text` that the quote is from, or null if the text does not contain it. */
export function locate(text: string, quote: string): Span | null {
  const sought = wordsOf(quote).slice(0, MAX_WORDS);
  const words = wordsOf(text);
  const run = longestRun(words, sought);
  if (!run || (run.count < sought.length && charsOf(sought.slice(run.from, run.from + run.count)) < MIN_CHARS)) return null;
  const first = extend(words, sought, run.at, run.from, -1);
  const last = extend(words, sought, run.at + run.count - 1, run.from + run.count - 1, 1);
  const [begin, end] = [words[first], words[last]];
  return begin && end ? { start: begin.start, end: end.end } : null;
}

/** Where the words that a search found stand in a part of the text. */
export function locateWords(text: string, within: Span, found: string): Span[] {
  const sought = new Set(wordsOf(found).map((word) => word.text));
  return wordsOf(text.slice(within.start, within.end))
    .filter((word) => sought.has(word.text))
    .map(({ start, end }) => ({ start: within.start + start, end: within.start + end }));
}

function wordsOf(text: string): Word[] {
  return [...text.matchAll(WORD)].map((found) => ({
    text: found[0].normalize("NFKC").toLowerCase(),
    start: found.index,
    end: found.index + found[0].length,
  }));
}

const charsOf = (words: readonly Word[]): number => words.reduce((sum, word) => sum + word.text.length, 0);

interface Run {
  /** The index of its first word in the text and in the quote, and the number of its words. */
  readonly at: number;
  readonly from: number;
  readonly count: number;
}

/** The longest run of words that both have; the first one if there are several. */
function longestRun(words: readonly Word[], sought: readonly Word[]): Run | null {
  const places = new Map<string, number[]>();
  // In reverse order, so that a repeated word is not counted twice.
  sought.forEach((word, from) => places.set(word.text, [from, ...(places.get(word.text) ?? [])]));
  const lengths = new Array<number>(sought.length).fill(0);
  const ends = new Array<number>(sought.length).fill(-2);
  let best: Run | null = null;
  words.forEach((word, at) => {
    for (const from of places.get(word.text) ?? []) {
      const count = from > 0 && ends[from - 1] === at - 1 ? (lengths[from - 1] ?? 0) + 1 : 1;
      lengths[from] = count;
      ends[from] = at;
      if (count > (best?.count ?? 0)) best = { at: at - count + 1, from: from - count + 1, count };
    }
  });
  return best;
}

/** The last word of the passage in one direction, from a pair of equal words. */
function extend(words: readonly Word[], sought: readonly Word[], at: number, from: number, way: 1 | -1): number {
  for (;;) {
    const next = nearestPair(words, sought, at, from, way);
    if (!next) return at;
    [at, from] = next;
  }
}

function nearestPair(words: readonly Word[], sought: readonly Word[], at: number, from: number, way: 1 | -1): [number, number] | null {
  for (let distance = 2; distance <= GAP; distance += 1)
    for (let step = 1; step < distance; step += 1) {
      const [here, there] = [at + way * step, from + way * (distance - step)];
      if (words[here] !== undefined && words[here].text === sought[there]?.text) return [here, there];
    }
  return null;
}
