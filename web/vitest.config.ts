import { defineConfig } from "vitest/config";

import { alias } from "./vite.config.ts";

export default defineConfig({ resolve: { alias }, test: { include: ["test/**/*.test.ts", "test/**/*.test.tsx"], environment: "node", setupFiles: ["test/setup.ts"] } });
