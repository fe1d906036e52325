/** CSV → rows of cells (RFC 4180). The separator is the one of comma, semicolon and tab that the first line has most of. */

export function parseCsv(text: string): string[][] {
  const source = text.replace(/^\ufeff/, "");
  const separator = separatorOf(source.slice(0, source.search(/[\r\n]|$/)));
  const rows: string[][] = [];
  let row: string[] = [];
  let cell = "";
  let isQuoted = false;
  for (let at = 0; at < source.length; at += 1) {
    const letter = source.charAt(at);
    if (isQuoted) {
      if (letter !== '"') cell += letter;
      else if (source.charAt(at + 1) === '"') {
        cell += '"';
        at += 1;
      } else isQuoted = false;
    } else if (letter === '"' && cell === "") isQuoted = true;
    else if (letter === separator) {
      row.push(cell);
      cell = "";
    } else if (letter === "\n" || letter === "\r") {
      if (letter === "\r" && source.charAt(at + 1) === "\n") at += 1;
      rows.push([...row, cell]);
      row = [];
      cell = "";
    } else cell += letter;
  }
  if (cell !== "" || row.length) rows.push([...row, cell]);
  return rows.filter((one) => one.length > 1 || one[0] !== "");
}

function separatorOf(line: string): string {
  const count = (separator: string) => line.split(separator).length;
  return [",", ";", "\t"].reduce((best, one) => (count(one) > count(best) ? one : best));
}
