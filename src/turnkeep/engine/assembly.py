"""The assembly of what a model is sent: the history before the turn, its own rows, its files and its tools."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from turnkeep.compiler import Contents, budget_for, compile, safe_name
from turnkeep.config import EngineSettings
from turnkeep.model.agents import AgentSpec
from turnkeep.model.messages import Message
from turnkeep.model.turns import Turn
from turnkeep.providers.ports import ModelRequest, Provider, Reply, ToolOffer
from turnkeep.tools.ports import Toolbox
from turnkeep_client.wire.blocks import Block, ToolUse


class FileReader(Protocol):
    """Reads what the files of a history hold, for the compiler. A file that is gone is reported as gone."""

    async def contents(self, rows: Sequence[Message], *, sees_images: bool) -> Contents: ...


class Assembly(Struct, frozen=True, kw_only=True):
    """What the requests of one turn are made of. `history` is the window before the turn."""

    provider: Provider
    toolbox: Toolbox
    history: Sequence[Message] = ()
    files: FileReader | None = None

    async def request(
        self, turn: Turn, rows: Sequence[Message], settings: EngineSettings, *, may_call: bool
    ) -> ModelRequest:
        """The request of the next iteration; `rows` are those of the turn so far."""
        agent = turn.snapshot.agent or AgentSpec(name="")
        model = turn.model or settings.model
        can = await self.provider.abilities(model)
        rows = (*self.history, *rows)
        contents = await self.files.contents(rows, sees_images=can.sees_images) if self.files else {}
        compiled = compile(
            rows,
            target=self.provider.target,
            open_turn=turn.id,
            budget=budget_for(agent.tokenizer, turns=settings.window_turns, chars=settings.context_chars),
            system=agent.instructions,
            contents=contents,
            sees_images=can.sees_images,
            thinking=can.thinking,
        )
        return ModelRequest(
            model=model,
            messages=compiled.messages,
            system=compiled.system,
            may_think=compiled.thinking,
            tools=self._offers(compiled.tool_names),
            may_call=may_call,
            timeout_seconds=settings.provider_timeout_seconds,
        )

    def with_own_names(self, reply: Reply) -> Reply:
        """The reply with its calls under the names by which the toolbox knows its tools."""
        own = {safe_name(spec.name): spec.name for spec in self.toolbox.specs()}
        blocks: tuple[Block, ...] = tuple(
            msgspec.structs.replace(block, name=own.get(block.name, block.name))
            if isinstance(block, ToolUse)
            else block
            for block in reply.blocks
        )
        return msgspec.structs.replace(reply, blocks=blocks)

    def _offers(self, mentioned: Sequence[str]) -> tuple[ToolOffer, ...]:
        """The toolbox, under names that every provider accepts. A tool that the history mentions stays declared, also
        when it is gone: providers refuse a request with calls of tools that it does not declare."""
        offers = {
            safe_name(spec.name): ToolOffer(
                name=safe_name(spec.name), description=spec.description, input_schema=spec.input_schema
            )
            for spec in self.toolbox.specs()
        }
        for name in mentioned:
            gone = ToolOffer(name=name, description="No longer available.", input_schema={"type": "object"})
            offers.setdefault(name, gone)
        return tuple(offers.values())
