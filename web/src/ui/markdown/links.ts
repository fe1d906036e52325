/** Addresses in texts that others wrote: which of them a click may open. */

const NAMED: Readonly<Record<string, string>> = {
  amp: "&", lt: "<", gt: ">", quot: '"', apos: "'", nbsp: "\u00a0", ndash: "–", mdash: "—", hellip: "…", copy: "©",
  reg: "®", trade: "™", laquo: "«", raquo: "»", lsquo: "‘", rsquo: "’", ldquo: "“", rdquo: "”", bull: "•", middot: "·",
  times: "×", divide: "÷", plusmn: "±", deg: "°", euro: "€", pound: "£", cent: "¢", sect: "§", para: "¶", larr: "←",
  rarr: "→", uarr: "↑", darr: "↓", harr: "↔", ne: "≠", le: "≤", ge: "≥", infin: "∞", alpha: "α", beta: "β", gamma: "γ",
  delta: "δ", pi: "π", sigma: "σ", omega: "ω", Delta: "Δ", Sigma: "Σ", Omega: "Ω", sum: "∑", radic: "√", asymp: "≈",
};

/** Replaces character references (`&amp;`) by their characters. */
export function decodeEntities(text: string): string {
  if (!text.includes("&")) return text;
  return text.replace(/&(?:#(\d{1,7})|#[xX]([0-9a-fA-F]{1,6})|([A-Za-z]\w{1,30}));/g, (whole, decimal?: string, hex?: string, name?: string) => {
    if (name !== undefined) return NAMED[name] ?? whole;
    const code = decimal !== undefined ? Number(decimal) : Number.parseInt(hex ?? "", 16);
    return code === 0 || code > 0x10ffff || (code >= 0xd800 && code <= 0xdfff) ? "\ufffd" : String.fromCodePoint(code);
  });
}

/** The URL if a click may open it, else null. Allowed are absolute http, https and mailto URLs. */
export function safeHref(href: string): string | null {
  try {
    const url = new URL(decodeEntities(href).trim());
    return url.protocol === "https:" || url.protocol === "http:" || url.protocol === "mailto:" ? url.href : null;
  } catch {
    return null;
  }
}
