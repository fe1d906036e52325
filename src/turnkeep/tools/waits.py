"""Tools whose calls wait: those that a person must allow, and those that the caller runs."""

from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct, structs

from turnkeep.model.agents import AgentSpec
from turnkeep.tools.ports import CallContext, Outcome, Tool, ToolSpec
from turnkeep_client.wire.blocks import JsonObject, JsonValue


class ClientDefinition(Struct, frozen=True, kw_only=True):
    """A client tool as an agent or a question declares it."""

    name: str
    description: str = ""
    input_schema: JsonObject = {}


class ClientSideTool:
    """A tool that the caller runs. The engine asks for the result of a call, and does not call it."""

    def __init__(self, definition: ClientDefinition) -> None:
        self.spec = ToolSpec(
            name=definition.name,
            description=definition.description,
            input_schema={"type": "object", "properties": {}} | definition.input_schema,
            waits_for="client_tools",
        )

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        return Outcome(error="This tool is run by the client, and not by the server.")


class AskingTool:
    """Another tool, of which a person must allow each call."""

    def __init__(self, tool: Tool) -> None:
        self.spec = structs.replace(tool.spec, waits_for="approval")
        self._tool = tool

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        return await self._tool.call(args, context)


def is_of_type(declared: str | JsonObject, kind: str) -> bool:
    """Whether a tool is declared as one of this type: `native`, `http` or `client`."""
    return not isinstance(declared, str) and declared.get("type", "http") == kind


def native_names(tools: Iterable[str | JsonObject]) -> list[str]:
    """The native tools among these, which are declared by their names or as objects."""
    return [
        each if isinstance(each, str) else str(each["name"])
        for each in tools
        if isinstance(each, str) or is_of_type(each, "native")
    ]


def client_tools(declared: Iterable[str | JsonObject]) -> list[Tool]:
    """The client tools among these."""
    return [ClientSideTool(msgspec.convert(each, ClientDefinition)) for each in declared if is_of_type(each, "client")]


def asking(tools: Iterable[Tool], agent: AgentSpec) -> list[Tool]:
    """The tools of an agent, with those whose calls a person must allow marked as such."""
    asked = {
        str(each["name"]) for each in agent.tools if not isinstance(each, str) and each.get("approval") == "always"
    }
    servers = {f"{server['name']}__": server.get("approval") for server in agent.mcp_servers if server.get("approval")}
    return [AskingTool(tool) if _is_asked(tool.spec.name, asked, servers) else tool for tool in tools]


def _is_asked(name: str, asked: set[str], servers: Mapping[str, JsonValue]) -> bool:
    if name in asked:
        return True
    for prefix, approval in servers.items():
        if name.startswith(prefix):
            decided = approval.get(name.removeprefix(prefix)) if isinstance(approval, dict) else approval
            return decided == "always"
    return False
