"""JSON schemas: what tools may declare, and the arguments and answers that must fit."""

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any

import msgspec

from turnkeep.errors import InvalidRequest
from turnkeep_client.wire.agents import ClientTool, HttpTool
from turnkeep_client.wire.blocks import JsonObject, JsonValue

MAX_SCHEMA_BYTES = 65_536
MAX_SCHEMAS_BYTES = 262_144
MOST_REFERENCES = 10_000
"""That are followed for one check. Schemas that refer to each other twice each would take for ever."""


def check_all_declared(tools: Sequence[HttpTool | ClientTool]) -> None:
    """Raises InvalidRequest for tools that cannot be offered. Large schemas take a while, so call it in a thread."""
    if sum(len(msgspec.json.encode(tool.input_schema)) for tool in tools) > MAX_SCHEMAS_BYTES:
        raise InvalidRequest(f"The `input_schema` of all tools may have {MAX_SCHEMAS_BYTES:,} bytes together.")
    for tool in tools:
        check_declared(tool)


def check_declared(tool: HttpTool | ClientTool) -> None:
    """Raises InvalidRequest for a name or a schema that a tool cannot have."""
    if "__" in tool.name:
        raise InvalidRequest(f"The tool `{tool.name}` must not have `__` in its name: that marks tools of MCP servers.")
    _check_schema(tool)


def _check_schema(tool: HttpTool | ClientTool) -> None:
    schema, name = tool.input_schema, tool.name
    if len(msgspec.json.encode(schema)) > MAX_SCHEMA_BYTES:
        raise InvalidRequest(f"The `input_schema` of `{name}` has more than {MAX_SCHEMA_BYTES:,} bytes.")
    if schema.get("type", "object") != "object":
        raise InvalidRequest(f"The `input_schema` of `{name}` must be of type object: arguments have names.")
    for ref in _refs(schema):
        if not isinstance(ref, str) or not ref.startswith("#"):
            raise InvalidRequest(f"The `input_schema` of `{name}` refers to another document, which is not fetched.")
    from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]

    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as exc:
        where = "/".join(map(str, exc.absolute_path))
        place = f" at {where}" if where else ""
        raise InvalidRequest(f"The `input_schema` of `{name}` is no JSON schema{place}: {exc.message[:300]}") from exc
    except RecursionError as exc:
        raise InvalidRequest(f"The `input_schema` of `{name}` is nested too deeply.") from exc


def _refs(schema: JsonValue) -> Iterator[JsonValue]:
    waiting: list[JsonValue] = [schema]
    while waiting:
        item = waiting.pop()
        if isinstance(item, dict):
            yield from (item[key] for key in ("$ref", "$dynamicRef") if key in item)
            waiting += item.values()
        elif isinstance(item, list):
            waiting += item


def check_args(name: str, schema: JsonObject, args: JsonObject) -> None:
    """Raises InvalidRequest for arguments that do not fit the schema of the tool. Nothing is fetched.

    Regular expressions are not looked at, nor what depends on them: schemas come from users and from MCP servers, and
    one expression could stop the process for hours. The tool itself checks what it is given.
    """
    try:
        error = _first_error(args, schema)
    except RecursionError as exc:
        raise InvalidRequest(f"The arguments of `{name}` cannot be checked: its schema cannot be followed.") from exc
    if error is not None:
        raise InvalidRequest(f"The arguments do not fit `{name}`{error}")


def check_value(value: JsonValue, schema: JsonObject) -> None:
    """The same for any JSON value."""
    try:
        error = _first_error(value, schema)
    except RecursionError as exc:
        raise InvalidRequest("the schema cannot be followed.") from exc
    if error is not None:
        raise InvalidRequest(f"it does not fit the schema{error}")


def _first_error(value: JsonValue, schema: JsonObject) -> str | None:
    """Where and why the value does not fit. Raises RecursionError for a schema that cannot be followed."""
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        error = next(_bounded_validator()(schema, registry=Registry()).iter_errors(value), None)
    except Unresolvable as exc:
        raise RecursionError from exc
    if error is None:
        return None
    where = "/".join(map(str, error.absolute_path))
    place = f" at {where}" if where else ""
    return f"{place}: {error.message[:300]}"


def _bounded_validator() -> Any:
    """A class of validators that leave out what takes long, for one check."""
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend  # type: ignore[import-untyped]

    known, followed = Draft202012Validator.VALIDATORS, count(1)

    def nothing(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        return iter(())

    def additional(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if "patternProperties" not in schema:
            yield from known["additionalProperties"](validator, value, instance, schema)

    def refer(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        if next(followed) > MOST_REFERENCES:
            raise RecursionError
        yield from known["$ref"](validator, value, instance, schema) or ()

    slow = dict.fromkeys(
        ("pattern", "patternProperties", "unevaluatedProperties", "uniqueItems", "$dynamicRef"), nothing
    )
    return extend(Draft202012Validator, {**slow, "additionalProperties": additional, "$ref": refer})
