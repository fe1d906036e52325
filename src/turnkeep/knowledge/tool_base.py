"""The base of the knowledge tools: checked arguments, whole hits within the limit, and sources.

Decision: docs/decisions/0803
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, Any, Generic, TypeVar

import msgspec
from msgspec import Meta, Struct

from turnkeep.errors import CallerError
from turnkeep.tools.ports import CallContext, Outcome, Passage, ToolSpec
from turnkeep_client.wire.blocks import JsonObject

Arguments = TypeVar("Arguments", bound=Struct)

WIDEST_NUMBER = 9_999
SNIPPET_CHARS = 300
LEAST_CHARS = 200


Words = Annotated[str, Meta(min_length=1, max_length=500, description="Words to look for")]
Offset = Annotated[int, Meta(ge=0, le=10_000, description="Pass over so many results: for the next ones")]


class Search(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    query: Words
    offset: Offset = 0


class KnowledgeTool(Generic[Arguments]):
    """A tool made of a name, a type of arguments and a function. An error that the model can fix becomes its result."""

    def __init__(
        self,
        name: str,
        description: str,
        arguments: type[Arguments],
        run: Callable[[Arguments, CallContext], Awaitable[Outcome]],
    ) -> None:
        self.spec = ToolSpec(
            name=name, description=" ".join(description.split()), input_schema=_schema(arguments), is_idempotent=True
        )
        self._arguments = arguments
        self._run = run

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        try:
            arguments = msgspec.convert(args, self._arguments)
        except msgspec.ValidationError as exc:
            return Outcome(error=f"The arguments do not fit {self.spec.name}: {exc}.")
        try:
            return await self._run(arguments, context)
        except CallerError as exc:
            return Outcome(error=exc.detail)


def fitted(
    passages: Sequence[Passage],
    context: CallContext,
    *,
    offset: int,
    next_offset: int | None,
    notes: Sequence[str] = (),
) -> Outcome:
    """As many whole passages as fit the limit, at least one, and how to get the next ones."""
    heading = _heading(offset, len(passages), notes, following=offset + len(passages))
    left = context.result_chars - len(heading)
    shown: list[Passage] = []
    for passage in passages:
        left -= len(passage.rendered(WIDEST_NUMBER)) + 2
        if left < 0 and shown:
            break
        shown.append(passage)
    following = offset + len(shown) if len(shown) < len(passages) else next_offset
    return Outcome(result=_heading(offset, len(shown), notes, following=following), passages=tuple(shown))


def room_for(context: CallContext, hits: int) -> int:
    """The number of characters for each hit, without its title."""
    return max(LEAST_CHARS, (context.result_chars - 400) // hits - 120)


def nothing(query: str, notes: Sequence[str] = ()) -> Outcome:
    return Outcome(result="\n".join([f"Nothing was found for {query!r}. Try other or fewer words.", *notes]))


def cut(text: str, chars: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= chars else text[: chars - 1] + "…"


def _heading(offset: int, count: int, notes: Sequence[str], *, following: int | None) -> str:
    which = f"Result {offset + 1}" if count == 1 else f"Results {offset + 1} to {offset + count}"
    more = "There are no more." if following is None else f"For the next ones call again with offset {following}."
    return "\n".join([f"{which}. {more} Cite what you use by its number, as [1].", *notes])


def _schema(arguments: type[Struct]) -> JsonObject:
    (top,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema: dict[str, Any] = components.pop(top["$ref"].rpartition("/")[2])
    schema.pop("title", None)
    schema.pop("description", None)
    return {**schema, "$defs": components} if components else schema
