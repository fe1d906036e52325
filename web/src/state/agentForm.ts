/** The fields of the form of an agent, and the agent that the server gets from them. */
import type { Agent, HttpTool, McpServer, NewAgent, Skill } from "../wire/types";
import { words } from "../words";

export interface AgentFields {
  readonly name: string;
  readonly description: string;
  /** Questions to begin with, one on each line. */
  readonly starters: string;
  readonly instructions: string;
  readonly model: string;
  /** Names of native tools, separated by commas. */
  readonly tools: string;
  readonly httpTools: readonly HttpToolFields[];
  readonly mcpServers: readonly McpServerFields[];
  readonly skills: readonly Skill[];
  readonly sandbox: boolean;
  readonly variables: string;
  readonly setupScript: string;
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
  /** Settings that the form does not show. They stay as they are. */
  readonly rest: object;
}

export interface McpServerFields {
  readonly name: string;
  readonly url: string;
  readonly headers: string;
  /** A server that is a command. The form shows it and does not change it. */
  readonly kept: McpServer | null;
  /** Settings that the form does not show (allowed tools, timeouts). They stay as they are. */
  readonly rest: object;
}

const NO_ARGUMENTS = '{\n  "type": "object",\n  "properties": {}\n}';

export const newHttpTool: HttpToolFields = { name: "", description: "", url: "", method: "POST", schema: NO_ARGUMENTS, headers: "", idempotent: false, rest: {} };
export const newMcpServer: McpServerFields = { name: "", url: "", headers: "", kept: null, rest: {} };

export function fieldsOf(agent: Agent | null): AgentFields {
  const tools = agent?.tools ?? [];
  const environment = (agent?.environment ?? {}) as { variables?: Record<string, string>; setup_script?: string };
  return {
    name: agent?.name ?? "",
    description: agent?.description ?? "",
    starters: (agent?.starters ?? []).join("\n"),
    instructions: agent?.instructions ?? "",
    model: agent?.model ?? "",
    tools: tools.filter((tool) => typeof tool === "string").join(", "),
    httpTools: tools.filter((tool) => typeof tool !== "string").map((tool) => httpToolFields(tool as unknown as HttpTool)),
    mcpServers: (agent?.mcp_servers ?? []).map((server) => mcpServerFields(server as unknown as McpServer)),
    skills: (agent?.skills ?? []) as unknown as Skill[],
    sandbox: agent?.sandbox ?? false,
    variables: linesOf(environment.variables, "="),
    setupScript: environment.setup_script ?? "",
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
  const mcpServers = fields.mcpServers.map((server) => server.kept ?? ({ ...server.rest, name: server.name.trim(), url: server.url.trim(), headers: pairsOf(server.headers, ":") } as McpServer));
  return {
    ...fields.rest,
    name: fields.name.trim(),
    description: fields.description.trim(),
    starters: fields.starters.split("\n").map((line) => line.trim()).filter(Boolean),
    instructions: fields.instructions,
    model: fields.model || null,
    tools: [...fields.tools.split(",").map((name) => name.trim()).filter(Boolean), ...httpTools],
    mcp_servers: mcpServers,
    skills: [...fields.skills],
    sandbox: fields.sandbox,
    environment: { variables: pairsOf(fields.variables, "="), ...(fields.setupScript.trim() ? { setup_script: fields.setupScript } : {}) },
  };
}

function httpToolFields(tool: HttpTool): HttpToolFields {
  const { name, description, url, method, input_schema: schema, headers, idempotent, type: _, ...rest } = tool;
  return {
    name,
    description: description ?? "",
    url,
    method: method ?? "POST",
    schema: JSON.stringify(schema ?? {}, null, 2),
    headers: linesOf(headers as Record<string, string> | undefined, ": "),
    idempotent: idempotent ?? false,
    rest,
  };
}

function mcpServerFields(server: McpServer): McpServerFields {
  const { name, url, headers, ...rest } = server;
  return {
    name,
    url: url ?? "",
    headers: linesOf(headers as Record<string, string> | undefined, ": "),
    kept: server.command ? server : null,
    rest,
  };
}

/** A text about the first line that is not a pair, so that no line is dropped silently. */
function invalidLine(fields: AgentFields): string | null {
  const headers = [...fields.httpTools, ...fields.mcpServers].map((one) => one.headers);
  const texts = [...headers.map((lines): [string, string] => [lines, ":"]), [fields.variables, "="] as const];
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
