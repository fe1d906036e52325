"""Tools as the engine calls them: a toolbox from an agent, one call, one outcome."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from turnkeep.engine.outcomes import call_tool
from turnkeep.ids import CallId, ConversationId, OrgId, TurnId, WorkspaceId
from turnkeep.model.agents import AgentSpec, with_secrets
from turnkeep.model.principals import Principal
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.ports import CallContext, Outcome, Tool, Toolbox
from turnkeep.tools.registry import ToolRegistry, open_tools
from turnkeep.tools.vault import Vault
from turnkeep_client.wire.blocks import ToolUse

VAULT = Vault(["a secret of the tests"])
ORG = OrgId("org_1")
CALL_ID = "call_0123"

ANYWHERE = AddressGuard(allow_private=True)


def a_principal(*, org: str = ORG, allowed_tools: tuple[str, ...] | None = None) -> Principal:
    return Principal(
        org_id=OrgId(org), workspace_id=WorkspaceId("ws_1"), user_id=None, role="service", allowed_tools=allowed_tools
    )


def an_agent(*tools: Any, mcp_servers: tuple[Any, ...] = ()) -> AgentSpec:
    """An agent as the store has it: its secrets are sealed."""
    spec = AgentSpec(name="A", tools=tools, mcp_servers=mcp_servers)
    return with_secrets(spec, lambda _, text: VAULT.seal(ORG, text))


@asynccontextmanager
async def a_registry(*native: Tool, guard: AddressGuard = ANYWHERE) -> AsyncIterator[ToolRegistry]:
    async with open_tools(VAULT, guard, native=native, offered_to_all=[tool.spec.name for tool in native]) as tools:
        yield tools


@asynccontextmanager
async def a_toolbox(agent: AgentSpec, *, guard: AddressGuard = ANYWHERE) -> AsyncIterator[Toolbox]:
    async with a_registry(guard=guard) as tools:
        yield await tools.toolbox(agent, a_principal())


async def call(toolbox: Toolbox, name: str, args: Any = None, *, seconds: float = 20.0) -> Outcome:
    return await call_for(a_principal(), toolbox, name, args, seconds=seconds)


async def call_for(
    principal: Principal, toolbox: Toolbox, name: str, args: Any = None, *, seconds: float = 20.0
) -> Outcome:
    context = CallContext(
        call_id=CallId(CALL_ID),
        turn_id=TurnId("turn_1"),
        conversation_id=ConversationId("conv_1"),
        principal=principal,
    )
    use = ToolUse(id=CallId(CALL_ID), name=name, input=args or {})
    return await call_tool(toolbox, use, context, default_timeout=seconds)


def names(toolbox: Toolbox) -> list[str]:
    return [spec.name for spec in toolbox.specs()]
