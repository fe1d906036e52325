/** A parser of server-sent events. No I/O: chunks of text go in, whole frames come out. */

export interface Frame {
  event: string;
  data: string;
  /** The cursor after this frame, or null if the frame has none. */
  id: string | null;
}

/** The parser of one stream. `lastId` is the cursor to resume from, `retry` the delay before it in milliseconds. */
export class SseParser {
  lastId: string | null = null;
  retry: number | null = null;

  #rest = "";
  #isFirst = true;
  #event = "";
  #data: string[] = [];
  #id: string | null = null;

  feed(chunk: string): Frame[] {
    let text = this.#rest + chunk;
    if (this.#isFirst && text) {
      this.#isFirst = false;
      if (text.startsWith("\uFEFF")) text = text.slice(1);
    }
    const frames: Frame[] = [];
    let begin = 0;
    for (;;) {
      const end = lineEnd(text, begin);
      if (end === null) break;
      const frame = this.#line(text.slice(begin, end.at));
      if (frame) frames.push(frame);
      begin = end.next;
    }
    this.#rest = text.slice(begin);
    return frames;
  }

  #line(line: string): Frame | null {
    if (line === "") return this.#dispatch();
    if (line.startsWith(":")) return null;
    const colon = line.indexOf(":");
    const field = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (field === "event") this.#event = value;
    else if (field === "data") this.#data.push(value);
    else if (field === "id" && !value.includes("\0")) this.#id = value;
    else if (field === "retry" && /^\d+$/.test(value)) this.retry = Number(value);
    return null;
  }

  #dispatch(): Frame | null {
    const id = this.#id;
    if (id !== null) this.lastId = id;
    const frame = this.#data.length ? { event: this.#event || "message", data: this.#data.join("\n"), id } : null;
    this.#event = "";
    this.#data = [];
    this.#id = null;
    return frame;
  }
}

/** The end of the line that begins at `from`. A lone CR at the end of the text may be half of CR LF, so it waits. */
function lineEnd(text: string, from: number): { at: number; next: number } | null {
  for (let at = from; at < text.length; at += 1) {
    const code = text.charCodeAt(at);
    if (code === 10) return { at, next: at + 1 };
    if (code === 13) {
      if (at + 1 === text.length) return null;
      return { at, next: text.charCodeAt(at + 1) === 10 ? at + 2 : at + 1 };
    }
  }
  return null;
}
