/**
 * The worker in which pdf.js reads a file. The frame of a preview has no network, so that the worker cannot load anything:
 * `vite.config.ts` puts the decoders of scanned pictures (JBIG2, JPEG 2000) into it.
 */
import "pdfjs-dist/legacy/build/pdf.worker.mjs";
