/** The form of an agent keeps settings that it does not show, and rejects lines that it cannot parse. */
import { expect, test } from "vitest";

import type { Agent } from "@turnkeep/client";
import { fieldsOf, newMcpServer, specOf } from "../src/state/agentForm";

const agent = {
  name: "Clerk",
  avatar: "🗂️",
  description: "Files things.",
  starters: ["Where is it?", "Who has it?"],
  instructions: "Help.",
  model: null,
  tools: ["search_pages", { type: "native", name: "pay", approval: "always" }, { type: "http", name: "sky", url: "https://example.org", timeout_seconds: 5, headers: { "X-Key": "1" }, approval: "always" }, { type: "client", name: "battery", description: "", input_schema: {} }, { type: "sandbox", name: "shell", approval: "always" }],
  mcp_servers: [{ name: "files", url: "https://example.org/mcp", headers: { Authorization: "Bearer x: y" }, tools: ["read"], timeout_seconds: 9, approval: { read: "always" }, auth: "oauth" }],
  skills: [],
  sandbox: true,
  environment: { variables: { A: "b=c" }, image: "science", packages: ["pandas"] },
  limits: { tool_rounds: 7 },
  approvers: ["author", "admin"],
} as unknown as Agent;

test("an unchanged form changes nothing, also not limits, allowed tools and approvals", () => {
  expect(specOf(fieldsOf(agent))).toMatchObject({
    avatar: agent.avatar,
    description: agent.description,
    starters: agent.starters,
    tools: agent.tools,
    mcp_servers: agent.mcp_servers,
    environment: agent.environment,
    limits: agent.limits,
    approvers: agent.approvers,
  });
});

test("the form says which tools ask first, and who is asked", () => {
  const fields = fieldsOf(agent);
  expect([fields.asksFor, fields.approvers, fields.httpTools[0]?.asks, fields.boxAsks]).toEqual([["pay"], "both", true, ["shell"]]);
  expect(fields.mcpServers[0]).toMatchObject({ allowed: ["read"], asksAll: false, asksFor: ["read"], isAuthorized: true });
  const [tool, server] = [fields.httpTools[0], { ...newMcpServer, name: "x", url: "https://example.org", asksAll: true }];
  const spec = specOf({ ...fields, asksFor: ["search_pages"], boxAsks: [], approvers: "admin", httpTools: tool ? [{ ...tool, asks: false }] : [], mcpServers: [server], clientTools: [] });
  expect(spec).toMatchObject({ approvers: ["admin"], mcp_servers: [{ name: "x", approval: "always" }] });
  expect(typeof spec !== "string" && spec.tools?.slice(0, 2)).toEqual([{ type: "native", name: "search_pages", approval: "always" }, "pay"]);
  expect(JSON.stringify(typeof spec !== "string" && spec.tools?.[2])).not.toContain("approval");
});

test("a line that is not a pair is reported and not dropped", () => {
  const fields = fieldsOf(agent);
  expect(specOf({ ...fields, variables: "A=1\n\nTOKEN secret" })).toContain("“TOKEN secret” has no “=”");
  expect(specOf({ ...fields, mcpServers: [{ ...newMcpServer, name: "x", headers: "Bearer abc" }] })).toContain("“Bearer abc” has no “:”");
});
