"""Lookup of agents, pages and tables by what people type on the command line: an id, or a name."""

from collections.abc import Iterable
from typing import Protocol, TypeVar

from turnkeep.errors import InvalidRequest, NotFound
from turnkeep_client.sync import Turnkeep
from turnkeep_client.wire import Agent, KnowledgePage, PageItem, Table


class _WithId(Protocol):
    @property
    def id(self) -> str: ...


Found = TypeVar("Found", bound=_WithId)


def find_agent(turnkeep: Turnkeep, named: str) -> Agent:
    """The agent with that id, or the only one of that name. Raises NotFound, or InvalidRequest if there are several."""
    if named.startswith("agent_"):
        return turnkeep.agents.get(named)
    return _only_one("agent", named, ((one.name, one) for one in turnkeep.agents.list()))


def find_page(turnkeep: Turnkeep, named: str) -> KnowledgePage | PageItem:
    """The page with that id, or the only one of that title. Raises NotFound, or InvalidRequest if there are several."""
    if named.startswith("page_"):
        return turnkeep.pages.get(named)
    return _only_one("page", named, ((one.title, one) for one in turnkeep.pages.list()))


def find_table(turnkeep: Turnkeep, named: str) -> Table:
    """The table with that id or name. Names of tables are unique. Raises NotFound."""
    if named.startswith("table_"):
        return turnkeep.tables.get(named)
    return _only_one("table", named, ((one.name, one) for one in turnkeep.tables.list()))


def _only_one(kind: str, named: str, things: Iterable[tuple[str, Found]]) -> Found:
    matching = [thing for name, thing in things if name.casefold() == named.casefold()]
    if len(matching) > 1:
        ids = ", ".join(thing.id for thing in matching)
        raise InvalidRequest(f"{len(matching)} {kind}s are called {named!r}. Use an id: {ids}.")
    if not matching:
        raise NotFound(f"No {kind} is called {named!r}. `turnkeep {kind}s list` shows those there are.")
    return matching[0]
