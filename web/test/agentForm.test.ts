/** The form of an agent keeps settings that it does not show, and rejects lines that it cannot parse. */
import { expect, test } from "vitest";

import { fieldsOf, newMcpServer, specOf } from "../src/state/agentForm";
import type { Agent } from "../src/wire/types";

const agent = {
  name: "Clerk",
  description: "Files things.",
  starters: ["Where is it?", "Who has it?"],
  instructions: "Help.",
  model: null,
  tools: ["search_pages", { type: "http", name: "sky", url: "https://example.org", timeout_seconds: 5, headers: { "X-Key": "1" } }],
  mcp_servers: [{ name: "files", url: "https://example.org/mcp", headers: { Authorization: "Bearer x: y" }, tools: ["read"], timeout_seconds: 9 }],
  skills: [],
  sandbox: true,
  environment: { variables: { A: "b=c" } },
  limits: { tool_rounds: 7 },
} as unknown as Agent;

test("an unchanged form changes nothing, also not limits and allowed tools", () => {
  expect(specOf(fieldsOf(agent))).toMatchObject({
    description: agent.description,
    starters: agent.starters,
    tools: agent.tools,
    mcp_servers: agent.mcp_servers,
    environment: agent.environment,
    limits: agent.limits,
  });
});

test("a line that is not a pair is reported and not dropped", () => {
  const fields = fieldsOf(agent);
  expect(specOf({ ...fields, variables: "A=1\n\nTOKEN secret" })).toContain("“TOKEN secret” has no “=”");
  expect(specOf({ ...fields, mcpServers: [{ ...newMcpServer, name: "x", headers: "Bearer abc" }] })).toContain("“Bearer abc” has no “:”");
});
