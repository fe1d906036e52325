// A program for Deno. deno.test.mjs runs it, and reads what it prints.
import { NotFound, Turnkeep, type TurnStream } from "@turnkeep/client";

declare const Deno: { env: { get(name: string): string | undefined } };

const variable = (name: string): string => Deno.env.get(`TURNKEEP_${name}`) ?? "";
const options = { baseUrl: variable("URL"), token: () => Promise.resolve(variable("KEY")) };
const question = { message: variable("SCRIPT"), agent_id: variable("AGENT") };

async function wordsOf(stream: TurnStream): Promise<string> {
  let shown = "";
  for await (const { text, dropped } of stream.words()) shown = shown.slice(0, shown.length - dropped) + text;
  return shown;
}

/** `fetch` that breaks the bodies of streams after some bytes, as a bad network does. */
let cuts = 0;
const cutting: typeof fetch = async (url, init) => {
  const response = await fetch(url, init);
  if (!String(url).includes("/events") || cuts >= 3 || response.body === null) return response;
  let left = 150;
  const cut = new TransformStream<Uint8Array, Uint8Array>({
    transform(chunk, controller) {
      controller.enqueue(chunk.subarray(0, left));
      left -= chunk.length;
      if (left > 0) return;
      cuts += 1;
      controller.error(new TypeError("terminated"));
    },
  });
  return new Response(response.body.pipeThrough(cut), response);
};

const turnkeep = new Turnkeep(options);
const words = await wordsOf(turnkeep.stream(question));
const resumed = await wordsOf(new Turnkeep({ ...options, fetch: cutting }).stream(question));

const endless = turnkeep.stream({ message: JSON.stringify({ rounds: [["One ", { pause: 60 }]] }) });
for await (const event of endless) if (event.type === "delta") await endless.cancel();

const refused = await turnkeep.conversations.get("conv_00000000000070008000000000000000").catch((error: unknown) => (error instanceof NotFound ? error.name : String(error)));
console.log(JSON.stringify({ runtime: navigator.userAgent, words, resumed, cuts, stopped: endless.turn.status, refused }));
