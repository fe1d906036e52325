// OpenAI's SDK for JavaScript against a Turnkeep with the demo model: node openai.mjs BASE_URL KEY
import assert from "node:assert/strict";

import OpenAI, { toFile } from "openai";

const [baseURL, apiKey] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

const models = [];
for await (const model of client.models.list()) models.push(model.id);
assert.ok(models.includes("demo"));

// Responses: events, and the helper that builds the response of them.
let words = "";
let last = -1;
let final;
for await (const event of await client.responses.create({ model: "demo", input: "write 60 words", stream: true })) {
  assert.ok(event.sequence_number > last);
  last = event.sequence_number;
  if (event.type === "response.output_text.delta") words += event.delta;
  if (event.type === "response.completed") final = event.response;
}
assert.equal(words.split(/\s+/).length, 60);
const stored = await client.responses.retrieve(final.id);
assert.equal(stored.output_text, words);
const helped = await client.responses.stream({ model: "demo", input: "write 60 words" }).finalResponse();
assert.equal(helped.output_text, words);

// A function of the caller, and its output.
const tools = [
  {
    type: "function",
    name: "get_weather",
    description: "The weather of a city",
    strict: false,
    parameters: { type: "object", properties: { city: { type: "string" } }, required: ["city"] },
  },
];
const asked = await client.responses.create({ model: "demo", input: "What's the weather in Paris?", tools });
const call = asked.output.find((item) => item.type === "function_call");
assert.deepEqual(JSON.parse(call.arguments), { city: "Paris" });
const answered = await client.responses.create({
  model: "demo",
  tools,
  previous_response_id: asked.id,
  input: [{ type: "function_call_output", call_id: call.call_id, output: "18 degrees" }],
});
assert.match(answered.output_text, /18 degrees/);

// Chat Completions: chunks, and the helper.
const messages = [{ role: "user", content: "write 60 words" }];
let chunks = "";
for await (const chunk of await client.chat.completions.create({ model: "demo", messages, stream: true })) {
  chunks += chunk.choices[0]?.delta?.content ?? "";
}
assert.equal(chunks, words);
assert.equal(await client.chat.completions.stream({ model: "demo", messages }).finalContent(), words);

// Files.
const file = await client.files.create({ file: await toFile(Buffer.from("Buy milk."), "notes.txt"), purpose: "user_data" });
assert.equal(await (await client.files.content(file.id)).text(), "Buy milk.");
const read = await client.responses.create({
  model: "demo",
  input: [{ role: "user", content: [{ type: "input_file", file_id: file.id }, { type: "input_text", text: "What?" }] }],
});
assert.match(read.output_text, /Buy milk\./);

// Conversations: the items of a response are listed under their ids, in pages, and any of them can be deleted.
const conversation = await client.conversations.create({ items: [{ type: "message", role: "user", content: "hello" }] });
const told = await client.responses.create({ model: "demo", input: "hello", conversation: conversation.id });
const items = [];
for await (const item of client.conversations.items.list(conversation.id, { order: "asc", limit: 1 })) items.push(item);
assert.deepEqual(items.slice(2), told.output);
await client.conversations.items.delete(items[1].id, { conversation_id: conversation.id });
const left = await client.conversations.items.list(conversation.id, { order: "asc" });
assert.deepEqual(left.data, [items[0], ...items.slice(2)]);

// Requests that follow the same response do not wait for each other.
const follow = { model: "demo", input: "hello", previous_response_id: told.id };
const forks = await Promise.all([1, 2, 3].map(() => client.responses.create(follow)));
assert.deepEqual(forks.map((fork) => fork.status), ["completed", "completed", "completed"]);

// Errors.
await assert.rejects(client.responses.create({ model: "nothing", input: "x" }), OpenAI.NotFoundError);
console.log("ok");
