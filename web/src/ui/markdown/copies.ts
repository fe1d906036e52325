/** What is drawn of an answer, for other programs: as HTML for documents and mails, and tables as CSV. Loaded when it is copied. */

const KEPT_ATTRIBUTES: Readonly<Record<string, readonly string[]>> = { A: ["href"], OL: ["start"], TD: ["align"], TH: ["align"] };
const LEFT_OUT = "button, .table-tools, figcaption, .preview, .preview-note, .visually-hidden, input";

/** The texts of an answer as HTML without classes, buttons and scripts. Formulas are given as TeX. */
export function htmlOf(article: Element): string {
  const texts = [...article.querySelectorAll(".prose")].filter((text) => !text.closest(".reasoning"));
  return texts.map((text) => plain(text).innerHTML).join("\n");
}

function plain(text: Element): Element {
  const copy = text.cloneNode(true) as Element;
  for (const formula of copy.querySelectorAll(".maths")) formula.replaceWith(texOf(formula));
  for (const box of copy.querySelectorAll('input[type="checkbox"]')) box.replaceWith((box as HTMLInputElement).checked ? "☑ " : "☐ ");
  for (const cite of copy.querySelectorAll(".cite")) cite.replaceWith(citeOf(cite));
  for (const element of copy.querySelectorAll(LEFT_OUT)) element.remove();
  for (const code of copy.querySelectorAll("figure.code")) code.replaceWith(codeOf(code));
  for (const block of copy.querySelectorAll(".table-block")) {
    const table = block.querySelector("table");
    if (!table) continue;
    // Mail programs and word processors draw lines only if the table itself asks for them.
    table.setAttribute("border", "1");
    block.replaceWith(table);
  }
  for (const element of copy.querySelectorAll("*"))
    for (const { name } of [...element.attributes])
      if (!(KEPT_ATTRIBUTES[element.tagName] ?? []).includes(name) && !(element.tagName === "TABLE" && name === "border")) element.removeAttribute(name);
  return copy;
}

function codeOf(figure: Element): Element {
  const pre = document.createElement("pre");
  const code = document.createElement("code");
  code.textContent = figure.querySelector("code")?.textContent ?? "";
  pre.append(code);
  return pre;
}

function texOf(formula: Element): string {
  const text = formula.querySelector("annotation")?.textContent ?? formula.textContent ?? "";
  return formula.classList.contains("is-block") ? `$$${text}$$` : `$${text}$`;
}

const citeOf = (cite: Element): string => `[${(cite.textContent ?? "").replaceAll(/[^\d]/g, "")}]`;

/** The table as CSV (RFC 4180), with one line for each row. */
export function csvOf(table: HTMLTableElement | null): string {
  if (!table) return "";
  return [...table.rows].map((row) => [...row.cells].map((cell) => written(textOf(cell))).join(",")).join("\r\n");
}

function textOf(cell: Element): string {
  const copy = cell.cloneNode(true) as Element;
  for (const formula of copy.querySelectorAll(".maths")) formula.replaceWith(texOf(formula));
  for (const cite of copy.querySelectorAll(".cite")) cite.replaceWith(citeOf(cite));
  for (const end of copy.querySelectorAll("br")) end.replaceWith("\n");
  return (copy.textContent ?? "").trim();
}

const NUMBER = /^[+-]?[\d.,\s\u00a0\u202f']*\d\s?%?$/;

/** A cell that begins like a formula gets an apostrophe, so that no spreadsheet computes what a model has written. */
function written(text: string): string {
  const safe = /^[=+\-@\t\r]/.test(text) && !NUMBER.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}
