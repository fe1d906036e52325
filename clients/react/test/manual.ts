/** The programs in JSX that the manual has. */
import { readFileSync } from "node:fs";
import { join } from "node:path";

const ROOT = join(import.meta.dirname, "../../..");
export const PAGES = ["docs/reference/react.md", "clients/react/README.md"];

/** All JSX of a page as one program. Each block is a program of its own, so two may import the same name. */
export function programOf(page: string): string {
  const text = readFileSync(join(ROOT, page), "utf8");
  const lines = [...text.matchAll(/^```jsx\n(.*?)^```/gms)].flatMap(([, block]) => (block ?? "").split("\n"));
  const isImport = (line: string) => line.startsWith("import ");
  const imports = new Map<string, Set<string>>();
  for (const line of lines.filter(isImport)) {
    const [, names = "", library = ""] = /^import (?:\{ (.*) \} from )?"(.*)";$/.exec(line) ?? [];
    imports.set(library, new Set([...(imports.get(library) ?? []), ...names.split(", ").filter(Boolean)]));
  }
  const heads = [...imports].map(([library, names]) => (names.size ? `import { ${[...names].join(", ")} } from "${library}";` : `import "${library}";`));
  return [...heads, ...lines.filter((line) => !isImport(line))].join("\n");
}
