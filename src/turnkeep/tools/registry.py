"""Which tools there are, and which of them an agent may use."""

from collections.abc import Iterable, Mapping

from turnkeep.errors import Defect
from turnkeep.model.agents import AgentSpec
from turnkeep.model.principals import Principal
from turnkeep.tools.ports import Tool, Toolbox, ToolSpec


class FixedToolbox:
    """A toolbox that was filled once."""

    def __init__(self, tools: Mapping[str, Tool]) -> None:
        self._tools = dict(tools)

    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self._tools.values())

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)


class ToolRegistry:
    """Native tools by name. An agent uses those that it names; a raw model uses the `offered_to_all` ones."""

    def __init__(self, tools: Iterable[Tool] = (), *, offered_to_all: Iterable[str] = ()) -> None:
        self._tools: dict[str, Tool] = {}
        for each in tools:
            if each.spec.name in self._tools:
                raise Defect(f"Two tools are called {each.spec.name}.")
            self._tools[each.spec.name] = each
        self._offered_to_all = tuple(offered_to_all)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._tools))

    async def toolbox(self, agent: AgentSpec | None, principal: Principal) -> Toolbox:
        """A name that no tool bears any more is passed over: the model is then told that there is no such tool."""
        wanted = self._offered_to_all if agent is None else agent.tools
        names = [name for name in wanted if isinstance(name, str)]
        return FixedToolbox({name: self._tools[name] for name in names if name in self._tools})
