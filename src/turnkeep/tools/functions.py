"""Python functions as tools.

    @tool(idempotent=True)
    async def weather(city: str, days: int = 1) -> str:
        \"\"\"The forecast for a city.\"\"\"

The schema comes from the type hints, and arguments are checked against them before the function is called. A
parameter annotated with CallContext receives it and is not shown to the model.
"""

import asyncio
import inspect
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from typing import Any, get_type_hints, overload

import msgspec

from turnkeep.errors import Defect
from turnkeep.tools.ports import CallContext, Outcome, ToolSpec
from turnkeep_client.wire.blocks import JsonObject

Function = Callable[..., Any]


class FunctionTool:
    """A tool that calls a function: async ones in the loop, others in a thread."""

    def __init__(
        self, function: Function, spec: ToolSpec, arguments: type[msgspec.Struct], context: str | None
    ) -> None:
        self.spec = spec
        self._function = function
        self._arguments = arguments
        self._context = context

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        try:
            checked = msgspec.convert(args, self._arguments)
        except msgspec.ValidationError as exc:
            return Outcome(error=f"The arguments do not fit {self.spec.name}: {exc}")
        values = {name: getattr(checked, name) for name in checked.__struct_fields__}
        if self._context is not None:
            values[self._context] = context
        if inspect.iscoroutinefunction(self._function):
            result = await self._function(**values)
        else:
            result = await asyncio.to_thread(self._function, **values)
        return result if isinstance(result, Outcome) else Outcome(result=_plain(result))


@overload
def tool(function: Function, /) -> FunctionTool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    timeout_seconds: float | None = None,
) -> Callable[[Function], FunctionTool]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    idempotent: bool = False,
    timeout_seconds: float | None = None,
) -> FunctionTool | Callable[[Function], FunctionTool]:
    """Make a tool of a function. Declare it `idempotent` if it may run twice when a worker dies in the middle."""

    def decorate(function: Function) -> FunctionTool:
        arguments, context = _arguments_of(function)
        spec = ToolSpec(
            name=name or function.__name__,
            description=description or inspect.getdoc(function) or "",
            input_schema=_schema_of(arguments),
            is_idempotent=idempotent,
            timeout_seconds=timeout_seconds,
        )
        return FunctionTool(function, spec, arguments, context)

    return decorate if function is None else decorate(function)


def _arguments_of(function: Function) -> tuple[type[msgspec.Struct], str | None]:
    """A Struct with the function's parameters, and the name of the one that wants the context."""
    hints = get_type_hints(function, include_extras=True)
    context: str | None = None
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY}:
            raise Defect(f"The tool {function.__name__} has a parameter {parameter} that cannot be called by name.")
        kind = hints.get(parameter.name, Any)
        if kind is CallContext:
            context = parameter.name
        elif parameter.default is parameter.empty:
            fields.append((parameter.name, kind))
        else:
            fields.append((parameter.name, kind, _default(parameter.default)))
    struct = msgspec.defstruct(function.__name__, fields, kw_only=True, forbid_unknown_fields=True)
    return struct, context


def _default(value: Any) -> Any:
    """Plain values stand in the schema; others are copied for each call, as msgspec asks of what can change."""
    if value is None or isinstance(value, str | int | float | tuple | frozenset):
        return value
    return msgspec.field(default_factory=partial(deepcopy, value))


def _schema_of(arguments: type[msgspec.Struct]) -> JsonObject:
    """The JSON schema, with the object itself on top as providers want it."""
    (top,), components = msgspec.json.schema_components([arguments], ref_template="#/$defs/{name}")
    schema: JsonObject = components.pop(top["$ref"].rpartition("/")[2])
    schema.pop("title", None)
    return {**schema, "$defs": components} if components else schema


def _plain(result: Any) -> Any:
    """The result as JSON values, whatever msgspec can make of it; else its text."""
    try:
        return msgspec.to_builtins(result)
    except (TypeError, ValueError):
        return str(result)
