"""Tools whose calls wait: those that a person must allow, and those that the caller runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeGuard

import msgspec
from msgspec import Struct, structs

from turnkeep.model.agents import AgentSpec, Snapshot
from turnkeep.model.waits import digest_of
from turnkeep.tools.ports import CallContext, Outcome, Tool, ToolSpec
from turnkeep_client.wire.blocks import JsonObject


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
    """Another tool, of which a person must allow each call, or those to which a function gives an identity."""

    def __init__(self, tool: Tool, identity: str | Callable[[JsonObject], str | None]) -> None:
        if isinstance(identity, str):
            self.spec = structs.replace(tool.spec, waits_for="approval", identity=identity)
        else:
            self.spec = structs.replace(tool.spec, waits_for="approval", identity_of=identity)
        self._tool = tool

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        return await self._tool.call(args, context)


def is_of_type(declared: str | JsonObject, kind: str) -> TypeGuard[JsonObject]:
    """Whether a tool is declared as one of this type: `native`, `http`, `client` or `sandbox`."""
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
    declared = [each for each in agent.tools if isinstance(each, dict) and not is_of_type(each, "sandbox")]
    by_name = {str(each["name"]): each for each in declared}
    return [_marked(tool, by_name, agent.mcp_servers) for tool in tools]


def box_asks(agent: AgentSpec) -> tuple[str, ...]:
    """The tools of the agent's box, and its recipes as `skill/path`, whose calls a person must allow."""
    tools = [
        str(each["name"]) for each in agent.tools if is_of_type(each, "sandbox") and each.get("approval") == "always"
    ]
    recipes: list[str] = []
    for skill in agent.skills:
        rule, paths = skill.get("approval"), [path for path in skill.get("files", {}) if path != "SKILL.md"]
        asked = [path for path in paths if (rule.get(path) if isinstance(rule, dict) else rule) == "always"]
        recipes += [f"{skill['name']}/{path}" for path in asked]
    return (*tools, *recipes)


def can_wait(snapshot: Snapshot) -> bool:
    """Whether a call of this turn may have to wait for an answer."""
    agent = snapshot.agent or AgentSpec(name="")
    declared = [*agent.tools, *snapshot.client_tools]
    rules = [each.get("approval") for each in (*declared, *agent.mcp_servers) if isinstance(each, dict)]
    return (
        any(is_of_type(each, "client") for each in declared)
        or any("always" in rule.values() if isinstance(rule, dict) else rule == "always" for rule in rules)
        or bool(box_asks(agent))
    )


def _marked(tool: Tool, declared: Mapping[str, JsonObject], servers: Sequence[JsonObject]) -> Tool:
    """If more than one rule fits the name, one that asks is enough."""
    name = tool.spec.name
    rules = [(declared[name], declared[name].get("approval"))] if name in declared else []
    for server in servers:
        prefix, approval = f"{server['name']}__", server.get("approval")
        if name.startswith(prefix):
            rules.append((server, approval.get(name.removeprefix(prefix)) if isinstance(approval, dict) else approval))
    for declaration, rule in rules:
        if rule == "always":
            return AskingTool(tool, identity_of(name, {key: declaration.get(key) for key in _PLACE}))
    return tool


def identity_of(name: str, declaration: JsonObject) -> str:
    """The identity of a tool: its name, and a hash of where it is and what it is."""
    return f"{name}#{digest_of(name, declaration)[:16]}"


_PLACE = ("type", "url", "method", "command", "args", "arguments")
"""The fields of a declaration that say which tool is called. Credentials may be renewed, and are left out."""
