import { join } from "node:path";

import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

/** `embed.js`: the element `<turnkeep-chat>` with all that it needs, as one script. `scripts/web build` puts it beside the page. */
export default defineConfig({
  plugins: [react()],
  resolve: { alias: { "@turnkeep/client": join(import.meta.dirname, "../js/src/index.ts") } },
  define: { "process.env.NODE_ENV": '"production"' },
  build: {
    target: "es2022",
    emptyOutDir: false,
    reportCompressedSize: false,
    lib: { entry: join(import.meta.dirname, "src/element.tsx"), formats: ["iife"], name: "TurnkeepEmbed", fileName: () => "embed.js" },
  },
});
