/** The fields of the form of an agent, and the agent that the server gets from them. */
import type { Agent, AgentTool, BoxTool, ClientTool, HttpTool, McpServer, NamedTool, NewAgent, Skill } from "@turnkeep/client";
import { words } from "../words";

export interface AgentFields {
  readonly name: string;
  /** An emoji, or a picture as a `data:` address. */
  readonly avatar: string;
  readonly description: string;
  /** Questions to begin with, one on each line. */
  readonly starters: string;
  readonly instructions: string;
  readonly model: string;
  /** Names of native tools. */
  readonly tools: readonly string[];
  /** Names of those that run only after an approval. */
  readonly asksFor: readonly string[];
  /** Tools of the sandbox that run only after an approval. */
  readonly boxAsks: readonly BoxTool["name"][];
  readonly approvers: "author" | "admin" | "both";
  /** Tools that apps run. The form does not show them, and they stay as they are. */
  readonly clientTools: readonly ClientTool[];
  readonly httpTools: readonly HttpToolFields[];
  readonly mcpServers: readonly McpServerFields[];
  readonly skills: readonly Skill[];
  readonly sandbox: boolean;
  readonly variables: string;
  readonly setupScript: string;
  /** The image of the sandbox, and settings of the environment that the form does not show. They stay as they are. */
  readonly environmentRest: object;
  /** Settings that the form does not show. They stay as they are. */
  readonly rest: Pick<NewAgent, "limits">;
}

export interface HttpToolFields {
  readonly name: string;
  readonly description: string;
  readonly url: string;
  readonly method: NonNullable<HttpTool["method"]>;
  readonly schema: string;
  readonly headers: string;
  readonly idempotent: boolean;
  /** Whether each call needs an approval. */
  readonly asks: boolean;
  /** Settings that the form does not show. They stay as they are. */
  readonly rest: object;
}

export interface McpServerFields {
  readonly name: string;
  readonly url: string;
  readonly headers: string;
  /** Whether it is called with the tokens of the workspace's connection (OAuth). */
  readonly isAuthorized: boolean;
  /** The tools that the agent may use; null for all of them. */
  readonly allowed: readonly string[] | null;
  /** Whether each call needs an approval. */
  readonly asksAll: boolean;
  /** The tools whose calls need one, if not all do. */
  readonly asksFor: readonly string[];
  /** A server that is a command. The form shows it and does not change it. */
  readonly kept: McpServer | null;
  /** Settings that the form does not show (timeouts, constant arguments). They stay as they are. */
  readonly rest: object;
}

const NO_ARGUMENTS = '{\n  "type": "object",\n  "properties": {}\n}';

export const newHttpTool: HttpToolFields = { name: "", description: "", url: "", method: "POST", schema: NO_ARGUMENTS, headers: "", idempotent: false, asks: false, rest: {} };
export const newMcpServer: McpServerFields = { name: "", url: "", headers: "", isAuthorized: false, allowed: null, asksAll: false, asksFor: [], kept: null, rest: {} };
export const BOX_TOOLS: readonly BoxTool["name"][] = ["shell", "python", "run_recipe", "read_file", "write_file", "edit_file", "list_files", "grep_files"];

export function fieldsOf(agent: Agent | null): AgentFields {
  const tools = (agent?.tools ?? []) as AgentTool[];
  const asksFor = tools.filter((tool): tool is NamedTool => isTool(tool, "native") && tool.approval === "always");
  const approvers = agent?.approvers ?? [];
  const { variables, setup_script: setupScript, ...environmentRest } = (agent?.environment ?? {}) as { variables?: Record<string, string>; setup_script?: string };
  return {
    name: agent?.name ?? "",
    avatar: agent?.avatar ?? "",
    description: agent?.description ?? "",
    starters: (agent?.starters ?? []).join("\n"),
    instructions: agent?.instructions ?? "",
    model: agent?.model ?? "",
    tools: tools.flatMap((tool) => (typeof tool === "string" ? [tool] : tool.type === "native" ? [tool.name] : [])),
    asksFor: asksFor.map((tool) => tool.name),
    boxAsks: tools.flatMap((tool) => (isTool(tool, "sandbox") && tool.approval === "always" ? [tool.name] : [])),
    approvers: !approvers.includes("admin") ? "author" : approvers.includes("author") ? "both" : "admin",
    clientTools: tools.filter((tool) => isTool(tool, "client")),
    httpTools: tools.filter((tool) => isTool(tool, "http")).map(httpToolFields),
    mcpServers: (agent?.mcp_servers ?? []).map((server) => mcpServerFields(server as unknown as McpServer)),
    skills: (agent?.skills ?? []) as unknown as Skill[],
    sandbox: agent?.sandbox ?? false,
    variables: linesOf(variables, "="),
    setupScript: setupScript ?? "",
    environmentRest,
    rest: agent?.limits ? { limits: agent.limits } : {},
  };
}

/** The agent to save, or a text about what is wrong in the form. */
export function specOf(fields: AgentFields): NewAgent | string {
  const invalid = invalidLine(fields);
  if (invalid !== null) return invalid;
  const httpTools: HttpTool[] = [];
  for (const tool of fields.httpTools) {
    const schema = objectOf(tool.schema);
    if (schema === null) return words.settings.badJson(tool.name);
    httpTools.push({
      ...tool.rest,
      ...(tool.asks ? { approval: "always" } : {}),
      type: "http",
      name: tool.name.trim(),
      description: tool.description,
      input_schema: schema,
      url: tool.url.trim(),
      method: tool.method,
      headers: pairsOf(tool.headers, ":"),
      idempotent: tool.idempotent,
    } as HttpTool);
  }
  const mcpServers = fields.mcpServers.map((server) => server.kept ?? declaredServer(server));
  const nativeTools = fields.tools.map((name): string | NamedTool => (fields.asksFor.includes(name) ? { type: "native", name, approval: "always" } : name));
  const boxTools = fields.boxAsks.map((name): BoxTool => ({ type: "sandbox", name, approval: "always" }));
  return {
    ...fields.rest,
    approvers: fields.approvers === "both" ? ["author", "admin"] : [fields.approvers],
    name: fields.name.trim(),
    avatar: fields.avatar,
    description: fields.description.trim(),
    starters: fields.starters.split("\n").map((line) => line.trim()).filter(Boolean),
    instructions: fields.instructions,
    model: fields.model || null,
    tools: [...nativeTools, ...httpTools, ...fields.clientTools, ...boxTools],
    mcp_servers: mcpServers,
    skills: [...fields.skills],
    sandbox: fields.sandbox,
    environment: { ...fields.environmentRest, variables: pairsOf(fields.variables, "="), ...(fields.setupScript.trim() ? { setup_script: fields.setupScript } : {}) },
  };
}

function isTool<Type extends "native" | "http" | "client" | "sandbox">(tool: AgentTool, type: Type): tool is Extract<AgentTool, { type: Type }> {
  return typeof tool !== "string" && tool.type === type;
}

function httpToolFields(tool: HttpTool): HttpToolFields {
  const { name, description, url, method, input_schema: schema, headers, idempotent, approval, type: _, ...rest } = tool;
  return {
    name,
    description: description ?? "",
    url,
    method: method ?? "POST",
    schema: JSON.stringify(schema ?? {}, null, 2),
    headers: linesOf(headers as Record<string, string> | undefined, ": "),
    idempotent: idempotent ?? false,
    asks: approval === "always",
    rest,
  };
}

function mcpServerFields(server: McpServer): McpServerFields {
  const { name, url, headers, approval, auth, tools, ...rest } = server;
  const rules = typeof approval === "object" && approval !== null ? Object.entries(approval) : [];
  return {
    name,
    url: url ?? "",
    headers: linesOf(headers as Record<string, string> | undefined, ": "),
    isAuthorized: auth === "oauth",
    allowed: tools ?? null,
    asksAll: approval === "always",
    asksFor: rules.flatMap(([tool, rule]) => (rule === "always" ? [tool] : [])),
    kept: server.command ? server : null,
    rest,
  };
}

/** The server to list the tools of, or a text about what is wrong in the form. */
export function mcpServerOf(server: McpServerFields): McpServer | string {
  return invalidPair([[server.headers, ":"]]) ?? declaredServer(server);
}

function declaredServer(server: McpServerFields): McpServer {
  const approval = server.asksAll ? "always" : server.asksFor.length ? Object.fromEntries(server.asksFor.map((name) => [name, "always"])) : null;
  return {
    ...server.rest,
    ...(approval ? { approval } : {}),
    ...(server.allowed ? { tools: [...server.allowed] } : {}),
    ...(server.isAuthorized ? { auth: "oauth" } : {}),
    name: server.name.trim(),
    url: server.url.trim(),
    headers: pairsOf(server.headers, ":"),
  } as McpServer;
}

/** A text about the first line that is not a pair, so that no line is dropped silently. */
function invalidLine(fields: AgentFields): string | null {
  const headers = [...fields.httpTools, ...fields.mcpServers].map((one) => one.headers);
  return invalidPair([...headers.map((lines) => [lines, ":"] as const), [fields.variables, "="]]);
}

function invalidPair(texts: readonly (readonly [lines: string, between: string])[]): string | null {
  for (const [lines, between] of texts) {
    const invalid = lines.split("\n").find((line) => line.trim() && line.indexOf(between) < 1);
    if (invalid !== undefined) return words.settings.badLine(invalid.trim(), between);
  }
  return null;
}

function linesOf(pairs: Record<string, string> | undefined, between: string): string {
  return Object.entries(pairs ?? {}).map(([name, value]) => `${name}${between}${value}`).join("\n");
}

export function pairsOf(lines: string, between: string): Record<string, string> {
  const pairs: Record<string, string> = {};
  for (const line of lines.split("\n")) {
    const at = line.indexOf(between);
    if (at > 0) pairs[line.slice(0, at).trim()] = line.slice(at + between.length).trim();
  }
  return pairs;
}

function objectOf(text: string): Record<string, never> | null {
  try {
    const value: unknown = JSON.parse(text || "{}");
    return typeof value === "object" && value !== null && !Array.isArray(value) ? (value as Record<string, never>) : null;
  } catch {
    return null;
  }
}
