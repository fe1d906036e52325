/** What every browser has and Node 20 has not. Streams that outlive their test ask for it too. */

if (!("navigator" in globalThis)) Object.defineProperty(globalThis, "navigator", { value: { onLine: true }, configurable: true });
