// The golden turn as responses, read by OpenAI's SDK for JavaScript. `openai.mjs` runs the SDK against a server.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import { describe, test } from "node:test";
import OpenAI from "openai";

const GOLDEN = join(import.meta.dirname, "../../golden");

/** The response that the SDK makes of a file; the items that ended while it came, and the words of each. */
async function read(file) {
  const body = await readFile(join(GOLDEN, file));
  const fetching = async () => new Response(body, { headers: { "content-type": "text/event-stream" } });
  const client = new OpenAI({ baseURL: "http://localhost/", apiKey: "none", fetch: fetching, maxRetries: 0 });
  const stream = client.responses.stream({ model: "demo", input: "Pay, and say how the weather is." });
  const ended = [];
  const words = {};
  stream.on("response.output_item.done", ({ item }) => void ended.push(item));
  stream.on("response.output_text.delta", ({ item_id, delta }) => void (words[item_id] = (words[item_id] ?? "") + delta));
  return { response: await stream.finalResponse(), ended, words };
}

const kindsOf = ({ output }) => output.map(({ type, status }) => (status ? `${type} ${status}` : type));

describe("the golden turn", () => {
  for (const part of [1, 2]) {
    test(`is one and the same response live and in a replay, in part ${part}`, async () => {
      const live = await read(`everything.openai-responses.${part}.sse`);
      const replay = await read(`everything.openai-responses.${part}.replay.sse`);
      assert.deepEqual(live.response, replay.response);
      for (const { response, ended, words } of [live, replay]) {
        const ids = response.output.map(({ id }) => id);
        assert.deepEqual(ended.filter(({ id }) => ids.includes(id)).map(({ id }) => id), ids);
        assert.equal(ids.map((id) => words[id] ?? "").join(""), response.output_text);
        // Words that the model took back are no part of the response.
        for (const item of ended.filter(({ id }) => !ids.includes(id))) assert.equal(item.status, "incomplete");
      }
    });
  }

  test("ends with what the caller must answer, and then with the answer", async () => {
    const asked = await read("everything.openai-responses.1.sse");
    assert.ok(asked.ended.length > asked.response.output.length, "no words were taken back");
    assert.equal(asked.response.output_text, "Let me look.I will pay, and ask you.");
    assert.deepEqual(kindsOf(asked.response), [
      "reasoning completed", "message completed", "mcp_call completed", "mcp_call failed", "message completed",
      "mcp_approval_request", "mcp_approval_request", "function_call completed",
    ]);
    const { response } = await read("everything.openai-responses.2.sse");
    assert.equal(response.output_text, "Paid. Snow in Oslo [1].");
    assert.deepEqual(kindsOf(response), ["mcp_call failed", "mcp_call completed", "message completed"]);
    const { annotations } = response.output.at(-1).content[0];
    assert.deepEqual(annotations.map(({ type }) => type), ["url_citation", "file_path"]);
  });
});
