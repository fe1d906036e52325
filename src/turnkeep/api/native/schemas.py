"""JSON schemas of tools: what an agent or a question may declare, and arguments that must fit."""

from collections.abc import Iterator

import msgspec

from turnkeep.errors import InvalidRequest
from turnkeep_client.wire.agents import ClientTool, HttpTool
from turnkeep_client.wire.blocks import JsonObject, JsonValue

MAX_SCHEMA_BYTES = 65_536


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
    """Raises InvalidRequest for arguments that do not fit the schema of the tool. Nothing is fetched."""
    from jsonschema import Draft202012Validator
    from referencing import Registry
    from referencing.exceptions import Unresolvable

    try:
        error = next(Draft202012Validator(schema, registry=Registry()).iter_errors(args), None)
    except (Unresolvable, RecursionError) as exc:
        raise InvalidRequest(f"The arguments of `{name}` cannot be checked: its schema cannot be followed.") from exc
    if error is not None:
        where = "/".join(map(str, error.absolute_path))
        place = f" at {where}" if where else ""
        raise InvalidRequest(f"The arguments do not fit `{name}`{place}: {error.message[:300]}")
