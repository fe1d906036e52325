/**
 * JSON whose numbers stay as they are written. `JSON.parse` rounds integers above 2^53 and writes `1.0` as `1`, and the server
 * compares the arguments of a call exactly: what a person reads, and allows, must be what runs.
 */

/** A number as the text of a JSON document has it. */
export class JsonNumber {
  readonly text: string;

  constructor(text: string) {
    this.text = text;
  }
}

const TOKENS = /"(?:[^"\\]+|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
/** Marks a number inside of a string. It is made anew for each page, so that no text of a model can look like it. */
const MARK = `number-${Array.from(crypto.getRandomValues(new Uint32Array(4)), (part) => part.toString(36)).join("-")}:`;
const MARKED = new RegExp(`"${MARK}([^"]*)"`, "g");

/** The value of this JSON, with a JsonNumber for each number. Throws what `JSON.parse` throws. */
export function parseExact(text: string): unknown {
  JSON.parse(text);
  const marked = text.replaceAll(TOKENS, (token) => (token.startsWith('"') ? token : `"${MARK}${token}"`));
  return JSON.parse(marked, (_, value: unknown) => (typeof value === "string" && value.startsWith(MARK) ? new JsonNumber(value.slice(MARK.length)) : value));
}

/** The value as JSON; a JsonNumber is written as it was read. */
export function writeExact(value: unknown, indent = 0): string {
  const text = JSON.stringify(value, (_, each: unknown) => (each instanceof JsonNumber ? MARK + each.text : each), indent);
  return text.replaceAll(MARKED, "$1");
}

/** Calls with the arguments that this exact reading of the same JSON has. */
export function withExactArgs<Call extends { args?: unknown }>(calls: readonly Call[], exact: unknown): (Call & { exactArgs: unknown })[] {
  const { calls: read } = exact as { calls: { args?: unknown }[] };
  return calls.map((call, place) => ({ ...call, exactArgs: read[place]?.args }));
}
