"""Tools of MCP servers: each is called `server__tool`, whatever other servers there are."""

from collections.abc import Iterable

import mcp_types
from mcp import MCPError

from turnkeep.tools.mcp_pool import McpDefinition, McpServer
from turnkeep.tools.mcp_session import McpBroken, McpUnreachable
from turnkeep.tools.ports import CallContext, Outcome, ToolSpec
from turnkeep_client.wire.blocks import JsonObject, JsonValue

SEPARATOR = "__"
MAX_DESCRIPTION_CHARS = 10_000


class McpTool:
    """One tool of one server."""

    def __init__(self, server: McpServer, definition: McpDefinition, tool: mcp_types.Tool) -> None:
        hints = tool.annotations or mcp_types.ToolAnnotations()
        self.spec = ToolSpec(
            name=f"{definition.name}{SEPARATOR}{tool.name}",
            description=(tool.description or tool.title or "")[:MAX_DESCRIPTION_CHARS],
            input_schema={"type": "object", "properties": {}} | tool.input_schema,
            is_idempotent=bool(hints.idempotent_hint or hints.read_only_hint),
            timeout_seconds=definition.timeout_seconds,
        )
        self._server = server
        self._name = tool.name

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        try:
            result = await self._server.call(
                self._name, args, call_id=context.call_id, is_idempotent=self.spec.is_idempotent
            )
        except McpUnreachable as exc:
            return Outcome(error=f"The tool's server cannot be reached: {exc.detail}")
        except McpBroken as exc:
            return Outcome(error=f"outcome_unknown: the tool's server went away during the call: {exc.detail}")
        except MCPError as exc:
            return Outcome(error=f"The tool's server refused the call: {exc.message}")
        return outcome_of(result)


def tools_of(server: McpServer, definition: McpDefinition, listed: Iterable[mcp_types.Tool]) -> list[McpTool]:
    """The tools that the agent may use of those that the server lists."""
    allowed = definition.tools
    return [McpTool(server, definition, tool) for tool in listed if allowed is None or tool.name in allowed]


def outcome_of(result: mcp_types.CallToolResult) -> Outcome:
    """Structured content is the result where there is some; else the text. What is no text is described."""
    words = "\n".join(_words(block) for block in result.content)
    if result.is_error:
        return Outcome(error=words or "The tool failed and did not say why.")
    structured: JsonValue = result.structured_content
    if structured is None:
        return Outcome(result=words)
    if all(isinstance(block, mcp_types.TextContent) for block in result.content):
        return Outcome(result=structured)  # the text repeats it, for clients that know no structure
    return Outcome(result={"structured": structured, "content": words})


def _words(block: mcp_types.ContentBlock) -> str:
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.ImageContent() | mcp_types.AudioContent():
            return f"[{block.type}: {block.mime_type}, {len(block.data.rstrip('=')) * 3 // 4:,} bytes, not shown]"
        case mcp_types.ResourceLink():
            return f"[resource: {block.name} at {block.uri}]"
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents() as resource):
            return resource.text
        case mcp_types.EmbeddedResource(resource=resource):
            return f"[resource: {resource.uri}, {resource.mime_type or 'unknown type'}, not shown]"
