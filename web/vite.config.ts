import { join } from "node:path";

import react from "@vitejs/plugin-react";
import { defineConfig, type Plugin } from "vite";

/** Every browser that can run the page reads WOFF2, so KaTeX's other two kinds of each font are left out. */
const onlyWoff2: Plugin = {
  name: "only-woff2",
  enforce: "pre",
  transform(code, id) {
    if (!id.includes("katex.min.css")) return undefined;
    return code.replaceAll(/,url\([^)]+\.(?:woff|ttf)\) format\("(?:woff|truetype)"\)/g, "");
  },
};

/**
 * The worker of pdf.js imports decoders from an address when a file needs them. It runs where there is no network, so they
 * are built into it.
 */
const decodersInWorker: Plugin = {
  name: "decoders-in-worker",
  enforce: "pre",
  transform(code, id) {
    if (!id.includes("pdf.worker.mjs")) return undefined;
    const load = /await import\([^`()]*`\$\{WasmImage\.#wasmUrl\}\$\{this\._noWasmFilename\}`\)/;
    if (!load.test(code)) throw new Error("pdf.worker.mjs loads its decoders in another way than before");
    const folder = "pdfjs-dist/wasm";
    const imports = `import jbig2Decoder from "${folder}/jbig2_nowasm_fallback.js"; import openjpegDecoder from "${folder}/openjpeg_nowasm_fallback.js";`;
    return `${imports}\n${code.replace(load, '{ default: this._noWasmFilename.startsWith("jbig2") ? jbig2Decoder : openjpegDecoder }')}`;
  },
};

/** The page is built from the sources of the client, so that no package must be built first. */
export const alias = { "@turnkeep/client": join(import.meta.dirname, "../clients/js/src/index.ts") };

// Everything is served by `turnkeep serve` from its own origin, under a policy without inline scripts or styles.
export default defineConfig({
  plugins: [react(), onlyWoff2],
  resolve: { alias },
  worker: { format: "iife", plugins: () => [decodersInWorker] },
  build: {
    outDir: "../src/turnkeep/web",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 600,
    reportCompressedSize: false,
    rolldownOptions: { input: ["index.html", "embed.html", "preview.html"], checks: { pluginTimings: false } },
  },
  server: { proxy: { "/v1": "http://127.0.0.1:8787", "/signin": "http://127.0.0.1:8787" } },
});
