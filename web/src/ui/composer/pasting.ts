/** The files of a paste that is nothing but files. Spreadsheets add a picture of the cells to their text: there the text is meant. */
export function pastedFiles(carried: Pick<DataTransfer, "files" | "getData">): File[] {
  return carried.getData("text/plain") ? [] : [...carried.files];
}
