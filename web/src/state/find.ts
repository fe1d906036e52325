/** Finds words in a conversation. Upper and lower case, and forms of the same letter, are alike. */
import { type MessageRow, messageText } from "@turnkeep/client";

/** One place where the words stand: the row, and how many of its places come before. */
export interface Match {
  readonly row: string;
  readonly nth: number;
}

/** A text in which letters are compared. It is as long as the text, so that places in it are places in the text. */
export const folded = (text: string): string => [...text].map((letter) => fold(letter)).join("");

function fold(letter: string): string {
  const plain = letter.normalize("NFD").replaceAll(/\p{M}/gu, "").toLowerCase();
  return plain.length === letter.length ? plain : letter;
}

/** Where the words begin in the text, from left to right, without overlaps. */
export function placesOf(text: string, sought: string): number[] {
  const [within, words] = [folded(text), folded(sought)];
  const places: number[] = [];
  if (!words) return places;
  for (let at = within.indexOf(words); at >= 0; at = within.indexOf(words, at + words.length)) places.push(at);
  return places;
}

/** Every match in these rows, from the oldest message to the newest. */
export function matchesIn(rows: readonly MessageRow[], sought: string): Match[] {
  return rows.flatMap((row) => (row.kind === "message" ? placesOf(messageText(row.message.content), sought).map((_, nth) => ({ row: row.key, nth })) : []));
}
