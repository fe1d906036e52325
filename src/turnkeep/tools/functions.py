"""Python functions as tools, and loading them from the operator's own code (`TURNKEEP_TOOLS`).

    @tool(idempotent=True)
    async def weather(city: str, days: int = 1) -> str:
        \"\"\"The forecast for a city.\"\"\"

The schema comes from the type hints, and arguments are checked against them before the function is called. A
parameter annotated with CallContext receives it and is not shown to the model.
"""

import asyncio
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints, overload

import msgspec

from turnkeep.errors import Defect, InvalidRequest
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
    """Make a tool of a function. Declare it `idempotent` if it may run again after a worker died during the call."""

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
    """A Struct with the function's parameters, and the name of the parameter that takes the context."""
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
    """A plain value is shown in the schema; others are copied for each call, as msgspec requires for mutable values."""
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


def load_tools(places: Sequence[str]) -> list[FunctionTool]:
    """The tools of each place, in order: a file (`tools.py`) or the name of a module (`shop.tools`).

    Raises InvalidRequest, with the place and the reason, if the code is missing, fails, or has no tool.
    """
    tools: dict[str, FunctionTool] = {}
    for place in places:
        found = [value for value in vars(_imported(place)).values() if isinstance(value, FunctionTool)]
        if not found:
            raise InvalidRequest(f"TURNKEEP_TOOLS names {place}, which has no tool: decorate a function with @tool.")
        for each in found:
            if tools.setdefault(each.spec.name, each) is not each:
                raise InvalidRequest(f"TURNKEEP_TOOLS: two tools are called {each.spec.name}, one of them in {place}.")
    return list(tools.values())


def _imported(place: str) -> ModuleType:
    try:
        return _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    except InvalidRequest:
        raise
    except Exception as exc:
        raise InvalidRequest(f"TURNKEEP_TOOLS names {place}, which fails: {type(exc).__name__}: {exc}") from exc


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InvalidRequest(f"TURNKEEP_TOOLS names {path}, and there is no such file.")
    name = f"turnkeep_tools_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None, "a file that ends in .py has a loader"
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # type hints are looked up there
    spec.loader.exec_module(module)
    return module


def _import_module(name: str) -> ModuleType:
    """Import a module, also from the folder in which the server was started, as `python -m` does."""
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    return importlib.import_module(name)
