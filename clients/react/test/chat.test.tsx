/** The chat without a browser: what it sends, what it shows, and what an application can replace. */
import { type Part, Turnkeep } from "@turnkeep/client";
import { renderToStaticMarkup } from "react-dom/server";
import { describe, expect, test, vi } from "vitest";

import { Chat, defaultRenderers, defaultWords, Markdown, TurnkeepChat } from "../src/index.js";

const frame = (id: string, event: string, data: object) => `event: ${event}\nid: ${id}\ndata: ${JSON.stringify(data)}\n\n`;
const began = { turn_id: "turn_1", conversation_id: "conv_1", user_message_id: "msg_1", status: "running", attempt: 1 };
const conversation = { id: "conv_1", head_turn_id: "turn_1", running_turn: null };
const message = (role: string, content: Part[]) => ({ id: `msg_${role}`, conversation_id: "conv_1", turn_id: "turn_1", role, content, attachments: [], sources: [], usage: null, status: "succeeded", error: null, model: null, metadata: {}, created_at: 1 });

/** A chat with a server that has these answers, by method and path. */
function chatOf(answers: Record<string, () => Response>, options = {}) {
  const requests: [string, unknown][] = [];
  const fetch = (url: RequestInfo | URL, init: RequestInit = {}) => {
    const name = `${init.method} ${new URL(String(url)).pathname}`;
    requests.push([name, typeof init.body === "string" ? JSON.parse(init.body) : undefined]);
    return Promise.resolve(answers[name]?.() ?? Response.json({ code: "not_found", detail: `No ${name}.` }, { status: 404 }));
  };
  return { chat: new Chat(new Turnkeep({ baseUrl: "http://x", fetch, patienceMs: 0 }), options), requests };
}

const answered = {
  "POST /v1/turns": () => Response.json({ turn_id: "turn_1", conversation_id: "conv_1", events_url: "" }, { status: 202 }),
  "GET /v1/turns/turn_1/events": () => new Response(frame("1", "turn", began) + frame("2", "result", { message_id: "msg_2", message: "Hi.", content: [{ type: "text", text: "Hi." }], usage: null })),
  "GET /v1/conversations/conv_1": () => Response.json(conversation),
  "GET /v1/conversations/conv_1/messages": () => Response.json({ data: [message("assistant", [{ type: "text", text: "Hi." }]), message("user", [{ type: "text", text: "Hello" }])], next_cursor: null }),
};
const texts = (chat: Chat) => chat.get().thread.messages.map(({ content }) => content.map((part) => (part.type === "text" ? part.text : part.type)).join(""));

describe("a chat", () => {
  test("begins a conversation with its agent, and shows the answer", async () => {
    const ids: string[] = [];
    const { chat, requests } = chatOf(answered, { agent: "agent_1", onConversation: (id: string) => ids.push(id) });
    await chat.open();
    expect(requests).toEqual([]);
    await chat.send("Hello");
    await vi.waitFor(() => expect(texts(chat)).toEqual(["Hello", "Hi."]));
    expect(requests[0]).toEqual(["POST /v1/turns", { message: "Hello", if_busy: "enqueue", agent_id: "agent_1", background: true }]);
    expect(ids).toEqual(["conv_1"]);
    await chat.send("And?");
    expect(requests.findLast(([name]) => name === "POST /v1/turns")?.[1]).toMatchObject({ conversation_id: "conv_1", message: "And?" });
  });

  test("that is opened again shows its conversation", async () => {
    const { chat } = chatOf(answered, { conversationId: "conv_1" });
    expect(chat.get().thread.status).toBe("loading");
    await chat.open();
    expect(texts(chat)).toEqual(["Hello", "Hi."]);
  });

  test("says that its conversation is gone, and why a message was refused", async () => {
    const gone = chatOf({}, { conversationId: "conv_2" });
    await gone.chat.open();
    expect(gone.chat.get().thread.status).toBe("missing");
    const refused = chatOf({ "POST /v1/turns": () => Response.json({ code: "quota_exceeded", detail: "No more." }, { status: 429 }) });
    await refused.chat.send("Hello");
    expect(refused.chat.get().thread.outbox).toMatchObject([{ text: "Hello", status: "refused", error: { message: "No more." } }]);
  });
});

describe("a chat of several versions", () => {
  const again = {
    ...answered,
    "POST /v1/conversations/conv_1/turns/turn_1/edit": () => Response.json({ turn_id: "turn_2", conversation_id: "conv_1", events_url: "" }, { status: 202 }),
    "POST /v1/conversations/conv_1/turns/turn_1/regenerate": () => Response.json({ code: "rate_limited", detail: "Too fast." }, { status: 400 }),
    "PATCH /v1/conversations/conv_1": () => Response.json(conversation),
  };

  test("edits a question, and shows the edit at once", async () => {
    const { chat, requests } = chatOf(again, { conversationId: "conv_1" });
    await chat.open();
    expect(await chat.edit("turn_1", { text: "Goodbye", files: [] })).toBe(true);
    expect(requests.at(-2)).toEqual(["POST /v1/conversations/conv_1/turns/turn_1/edit", { message: "Goodbye", if_busy: "enqueue", background: true }]);
    expect(texts(chat)).toEqual(["Goodbye"]);
    expect(chat.get().thread.live?.id).toBe("turn_2");
    chat.close();
  });

  test("says why an answer is not made again, until the next thing is done", async () => {
    const { chat } = chatOf(again, { conversationId: "conv_1" });
    await chat.open();
    await chat.regenerate("turn_1");
    expect(chat.get().failure).toBe("Too fast.");
    expect(texts(chat)).toEqual(["Hello", "Hi."]);
    expect(await chat.showVersion("turn_1", "turn_0")).toBe(true);
    expect(chat.get().failure).toBeNull();
  });

  test("asks for the version that is wanted", async () => {
    const { chat, requests } = chatOf(again, { conversationId: "conv_1" });
    await chat.open();
    await chat.showVersion("turn_1", "turn_0");
    expect(requests.find(([name]) => name.startsWith("PATCH"))?.[1]).toEqual({ head_turn_id: "turn_0" });
    const refused = chatOf(answered, { conversationId: "conv_1" });
    await refused.chat.open();
    expect(await refused.chat.showVersion("turn_1", "turn_0")).toBe(false);
    expect(refused.chat.get().failure).toContain("PATCH");
  });

  test("gives back a refused message with its files, and sends it again with them", async () => {
    const file = { type: "file", file_id: "file_1", name: "a.txt", mime_type: "text/plain", size: 1 } as const;
    const { chat, requests } = chatOf({ "POST /v1/turns": () => Response.json({ code: "quota_exceeded", detail: "No more." }, { status: 429 }) });
    await chat.send("Read", [file]);
    const [refused] = chat.get().thread.outbox;
    await chat.sendAgain(refused?.key ?? "");
    expect(requests.at(-1)?.[1]).toMatchObject({ message: "Read", attachment_ids: ["file_1"] });
    const [still] = chat.get().thread.outbox;
    expect(await chat.remove(still?.key ?? "")).toEqual({ text: "Read", files: [file] });
    expect(chat.get().thread.outbox).toEqual([]);
  });
});

describe("Markdown", () => {
  const html = (text: string) => renderToStaticMarkup(<Markdown text={text} />);

  test("is drawn as elements", () => {
    expect(html("# Title\n\nA **b** `c`\n\n- one\n- two\n\n| a | b |\n|---|---|\n| 1 | 2 |")).toContain("<strong>b</strong>");
    expect(html("```js\n<b>\n```")).toContain("<code>&lt;b&gt;</code>");
  });

  test.each(["<img src=x onerror=alert(1)>", "[x](javascript:alert(1))", "![x](https://evil.example/pixel.png)", "[x](data:text/html,1)"])("draws no dangerous element for %s", (text) => {
    expect(html(text)).not.toMatch(/<img|<script|javascript:|href="data:|evil\.example/);
  });
});

describe("an application", () => {
  test("chooses the words", () => {
    const html = renderToStaticMarkup(<TurnkeepChat baseUrl="http://x" words={{ send: "Senden", write: "Nachricht" }} />);
    expect(html).toContain("Senden");
    expect(html).toContain('aria-label="Nachricht"');
    expect(html).toContain(defaultWords.attach);
  });

  test("replaces how a part is drawn", () => {
    const Step = defaultRenderers.step;
    const step = { type: "step", id: "s", name: "pay", status: "failed", args: {}, error: "No money." } as const;
    expect(renderToStaticMarkup(<Step step={step} words={defaultWords} />)).toContain("No money.");
    const Approval = defaultRenderers.approval;
    expect(renderToStaticMarkup(<Approval calls={[{ id: "c", name: "pay", args: { amount: 5 } }]} words={defaultWords} decide={() => undefined} />)).toContain("Allow");
  });
});
