/** What the frame of a preview needs to draw a PDF: it cannot load anything itself. Loaded when the first PDF is shown. */
import { fileContent } from "../wire/addresses";
import { bytes } from "../wire/routes";
import workerAddress from "../preview/pdfWorker?worker&url";

/** Fonts that few systems have, and the tables of characters of Chinese, Japanese and Korean files. Others are part of their file. */
const PARTS: Readonly<Record<string, string>> = import.meta.glob(["../../node_modules/pdfjs-dist/cmaps/*.bcmap", "../../node_modules/pdfjs-dist/standard_fonts/Foxit{Symbol,Dingbats}.pfb"], { query: "?url", import: "default", eager: true });
const ADDRESSES = new Map(Object.entries(PARTS).map(([path, address]) => [path.slice(path.lastIndexOf("/") + 1), address]));

export const readPdf = (id: string): Promise<Blob> => bytes(fileContent(id));

/** The script of the worker that reads a file. */
export const readPdfWorker = () => read(workerAddress);

/** A font or a table by its name; null if there is none, or if it cannot be loaded. */
export async function readPdfPart(name: string): Promise<ArrayBuffer | null> {
  const address = ADDRESSES.get(name);
  return address === undefined ? null : await read(address).catch(() => null);
}

async function read(address: string): Promise<ArrayBuffer> {
  const response = await fetch(address);
  if (!response.ok) throw new Error(response.statusText);
  return await response.arrayBuffer();
}
