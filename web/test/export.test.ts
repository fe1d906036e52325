/** The Markdown export names the author of each message. */
import { expect, test } from "vitest";

import type { Message } from "@turnkeep/client";
import { messageAsMarkdown } from "../src/effects/export";

const message = (role: Message["role"]): Message => ({
  id: "msg_1",
  conversation_id: "conv_1",
  turn_id: "turn_1",
  role,
  content: [{ type: "text", text: "Be brief." }],
  attachments: [],
  sources: [],
  usage: null,
  status: "succeeded",
  error: null,
  model: null,
  metadata: {},
  created_at: 0,
});

test("an answer that was stopped says so, and names its steps and files", () => {
  const stopped: Message = {
    ...message("assistant"),
    status: "cancelled",
    content: [
      { type: "step", id: "1", name: "lookup", status: "failed" },
      { type: "file", file_id: "file_1", name: "a.csv", mime_type: "text/csv", size: 1 },
    ],
  };
  expect(messageAsMarkdown(stopped)).toBe("## Assistant\n\n- *lookup*: failed\n\n- file: a.csv\n\n*This answer was stopped.*");
});

test.each([
  ["user", "## You"],
  ["assistant", "## Assistant"],
  ["system", "## Instructions"],
] as const)("a message of the %s is under %s", (role, heading) => {
  expect(messageAsMarkdown(message(role))).toBe(`${heading}\n\nBe brief.`);
});
