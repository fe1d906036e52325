/** Formulas, set by KaTeX. Loaded when the first formula is drawn. */
import "katex/dist/katex.min.css";
import katex from "katex";

/** KaTeX builds nodes, not HTML text; commands that could load or link anything are off. */
export function drawFormula(place: HTMLElement, text: string, isBlock: boolean): void {
  try {
    katex.render(text, place, { displayMode: isBlock, throwOnError: true, trust: false, strict: "ignore", maxExpand: 500, maxSize: 20 });
  } catch {
    place.textContent = text;
  }
}
