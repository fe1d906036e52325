import { join } from "node:path";

import { defineConfig } from "vitest/config";

import { programOf } from "./test/manual.js";

const from = (path: string) => join(import.meta.dirname, path);

const FOLDER = "/manual/";

/** `manual:docs/reference/react.md` is all JSX of this page, as one module. */
const manual = {
  name: "manual",
  resolveId: (id: string) => (id.startsWith("manual:") ? `${FOLDER}${id.slice("manual:".length)}.jsx` : undefined),
  load: (id: string) => (id.startsWith(FOLDER) ? programOf(id.slice(FOLDER.length, -".jsx".length)) : undefined),
};

export default defineConfig({
  plugins: [manual],
  resolve: {
    alias: [
      { find: "@turnkeep/client", replacement: from("../js/src/index.ts") },
      { find: "@turnkeep/react/styles.css", replacement: from("src/styles.css") },
      { find: "@turnkeep/react", replacement: from("src/index.ts") },
    ],
  },
  test: { include: ["test/**/*.test.ts", "test/**/*.test.tsx"], environment: "node" },
});
