"""Which tools there are, and which of them an agent may use: native ones, HTTP endpoints and MCP servers."""

import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager

from turnkeep.errors import InvalidRequest
from turnkeep.ids import OrgId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.principals import Principal
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.ports import Tool, Toolbox, ToolSpec
from turnkeep.tools.remote import RemoteTools
from turnkeep.tools.vault import Vault
from turnkeep_client.wire.blocks import JsonObject

_logger = logging.getLogger("turnkeep.tools")


class FixedToolbox:
    """A toolbox that was filled once. `notes` say what is missing from it, and why."""

    def __init__(self, tools: Mapping[str, Tool], notes: Sequence[str] = ()) -> None:
        self._tools = dict(tools)
        self.notes = tuple(notes)

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)


class ToolRegistry:
    """Native tools by name, and with `remote` the HTTP tools and MCP servers that agents declare.

    An agent uses what it names; a raw model uses the `offered_to_all` ones.
    """

    def __init__(
        self,
        tools: Iterable[Tool] = (),
        *,
        offered_to_all: Iterable[str] = (),
        remote: RemoteTools | None = None,
    ) -> None:
        self._tools: dict[str, Tool] = {}
        for each in tools:
            if each.spec.name in self._tools:
                raise InvalidRequest(f"Two tools are called {each.spec.name}. Give one of them another name.")
            self._tools[each.spec.name] = each
        self._offered_to_all = tuple(offered_to_all)
        self._remote = remote

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tools))

    async def toolbox(self, agent: AgentSpec | None, principal: Principal) -> Toolbox:
        """A name that no tool bears any more is passed over: the model is then told that there is no such tool.

        Of two tools with one name the first counts: native, HTTP, then the MCP servers in the agent's order.
        """
        wanted = self._offered_to_all if agent is None else agent.tools
        found = [self._tools[name] for name in wanted if isinstance(name, str) and name in self._tools]
        notes: list[str] = []
        if agent is not None and self._remote is not None:
            remote, notes = await self._remote.tools_of(agent, principal.org_id)
            found += remote
        taken: dict[str, Tool] = {}
        for each in found:
            if principal.may_use(each.spec.name) and taken.setdefault(each.spec.name, each) is not each:
                notes.append(f"There are two tools called {each.spec.name}; the first is used.")
        for note in notes:
            _logger.warning(note)
        return FixedToolbox(taken, notes)

    async def trouble_with(self, server: JsonObject, org_id: OrgId) -> str | None:
        """Why this MCP server cannot be used just now; None if it can."""
        return None if self._remote is None else await self._remote.trouble_with(server, org_id)

    async def check_address(self, url: str) -> str | None:
        """Raises AddressRefused for an address that tools may not call; says what else is wrong with it just now."""
        return None if self._remote is None else await self._remote.check_address(url)


@asynccontextmanager
async def open_tools(
    vault: Vault,
    guard: AddressGuard,
    *,
    native: Iterable[Tool] = (),
    offered_to_all: Iterable[str] = (),
    command_orgs: frozenset[OrgId] | None = None,
) -> AsyncIterator[ToolRegistry]:
    """All tools of a server, until the end of the block; then every connection and every program ends.

    `command_orgs` are those whose agents may have MCP servers that are commands; None: all of them.
    """
    async with RemoteTools(vault, guard, command_orgs=command_orgs) as remote:
        yield ToolRegistry(native, offered_to_all=offered_to_all, remote=remote)
