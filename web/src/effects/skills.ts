/** Skills from this computer: a folder or a zip file of texts, read in the browser. */
import type { Skill } from "@turnkeep/client";
import { words } from "../words";

/** A sentence about what is wrong, or the skill. */
export async function readSkillFolder(files: readonly File[]): Promise<Skill | string> {
  const paths = files.map((file) => file.webkitRelativePath || file.name);
  const folder = paths[0]?.includes("/") ? (paths[0].split("/")[0] ?? "") : "";
  const entries = await Promise.all(
    files.map(async (file, at): Promise<[string, Uint8Array]> => [within(paths[at] ?? file.name, folder), new Uint8Array(await file.arrayBuffer())]),
  );
  return skillOf(folder || "skill", entries);
}

export async function readSkillZip(file: File): Promise<Skill | string> {
  const entries = await unzip(new Uint8Array(await file.arrayBuffer()));
  if (entries === null) return words.settings.skillBadZip;
  const tops = new Set(entries.map(([path]) => path.split("/")[0] ?? ""));
  const [only] = tops;
  const folder = tops.size === 1 && only !== undefined && entries.every(([path]) => path.includes("/")) ? only : "";
  return skillOf(folder || file.name.replace(/\.zip$/i, ""), entries.map(([path, bytes]): [string, Uint8Array] => [within(path, folder), bytes]));
}

function skillOf(name: string, entries: readonly (readonly [string, Uint8Array])[]): Skill | string {
  const files: Record<string, string> = {};
  for (const [path, bytes] of entries) {
    if (path.split("/").some((part) => part.startsWith(".") || part === "__MACOSX")) continue;
    try {
      files[path] = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
    } catch {
      return words.settings.skillNotText(path);
    }
  }
  if (!("SKILL.md" in files)) return words.settings.skillNoFile(name);
  return { name: name.replace(/[^A-Za-z0-9_-]+/g, "-").slice(0, 64) || "skill", files };
}

const within = (path: string, folder: string): string => (folder && path.startsWith(`${folder}/`) ? path.slice(folder.length + 1) : path);

/** The files of a zip, from its central directory; null if it is none, or packed in a way that browsers cannot unpack. */
async function unzip(bytes: Uint8Array): Promise<[string, Uint8Array][] | null> {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  let end = bytes.length - 22;
  while (end >= 0 && view.getUint32(end, true) !== 0x06054b50) end -= 1;
  if (end < 0) return null;
  const entries: [string, Uint8Array][] = [];
  let at = view.getUint32(end + 16, true);
  try {
    for (let left = view.getUint16(end + 10, true); left > 0; left -= 1) {
      if (view.getUint32(at, true) !== 0x02014b50) return null;
      const method = view.getUint16(at + 10, true);
      const size = view.getUint32(at + 20, true);
      const [nameLength, extraLength, noteLength] = [view.getUint16(at + 28, true), view.getUint16(at + 30, true), view.getUint16(at + 32, true)];
      const header = view.getUint32(at + 42, true);
      const path = new TextDecoder().decode(bytes.subarray(at + 46, at + 46 + nameLength));
      const begin = header + 30 + view.getUint16(header + 26, true) + view.getUint16(header + 28, true);
      const packed = bytes.slice(begin, begin + size);
      if (!path.endsWith("/")) {
        if (method !== 0 && method !== 8) return null;
        entries.push([path, method === 0 ? packed : await inflate(packed)]);
      }
      at += 46 + nameLength + extraLength + noteLength;
    }
  } catch {
    return null;
  }
  return entries;
}

async function inflate(packed: Uint8Array<ArrayBuffer>): Promise<Uint8Array> {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
