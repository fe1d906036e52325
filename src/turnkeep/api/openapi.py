"""The OpenAPI 3.1 document, made from the endpoints' own declarations: every answer, errors and streams included."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, get_args, get_origin

import msgspec

from turnkeep.api import openapi_examples
from turnkeep.api.http.endpoints import Endpoint, Policy
from turnkeep_client.wire import events
from turnkeep_client.wire.errors import Problem

_REF = "#/components/schemas/{name}"
_PREFIXES = {
    "conversation_id": "conv",
    "turn_id": "turn",
    "agent_id": "agent",
    "key_id": "key",
    "workspace_id": "ws",
    "file_id": "file",
    "page_id": "page",
    "table_id": "table",
    "org_id": "org",
}
_NAMED: dict[str, dict[str, Any]] = {
    "row": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "skill": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"},
}
"""What a path names otherwise than by an id."""
_STREAM_EVENTS: dict[str, type] = {
    "turn": events.TurnBegan,
    "delta": events.Preview,
    "tool_calls": events.ToolCalls,
    "step": events.Step,
    "sources": events.Sources,
    "files": events.Files,
    "reset": events.Reset,
    "result": events.Result,
    "error": events.Failure,
}
_HEADERS = {
    "Idempotency-Key": "Up to 255 characters. The same key with the same body does nothing twice and answers the same.",
    "If-None-Match": "The `ETag` of what you have: 304 if it is still the same.",
    "If-Range": "The `ETag` that the range belongs to; without a match the whole file is sent.",
    "Range": "One range of bytes, as `bytes=0-1023`; several are passed over.",
    "Last-Event-ID": "The cursor to go on after, as a browser sends it; wins over `after`.",
    "Turnkeep-User": "Act for this user of the host (service keys only); made on first sight.",
    "Turnkeep-Workspace": "The workspace, where it is not the default one (service keys only).",
}
_EVERY = ("Turnkeep-User", "Turnkeep-Workspace")
_ERROR_HEADERS = {
    401: {"WWW-Authenticate": "How to identify"},
    409: {"x-should-retry": "Always `false`: trying again does not help"},
    429: {"Retry-After": "Seconds after which there is room again, where that is known"},
    503: {"Retry-After": "Seconds after which to try again"},
}


def document(endpoints: Sequence[Endpoint]) -> bytes:
    """The document as JSON."""
    described = [endpoint for endpoint in endpoints if endpoint.is_described]
    schemas = _Schemas(described)
    statuses = {status for endpoint in described for status in error_statuses(endpoint)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in described:
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = _operation(endpoint, schemas)
    return msgspec.json.encode(
        {
            "openapi": "3.1.0",
            "info": {
                "title": "Turnkeep",
                "version": version("turnkeep"),
                "description": "A conversation runtime: durable turns, streams that survive a reload, files, tools.",
                "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            },
            "paths": paths,
            "components": {
                "schemas": schemas.components,
                "responses": {f"Problem{status}": _problem(status, schemas) for status in sorted(statuses)},
                "parameters": {_parameter_name(name): _header(name) for name in _HEADERS},
                "securitySchemes": {
                    "bearer": {"type": "http", "scheme": "bearer", "description": "A service key or a user token"},
                    "page": {
                        "type": "apiKey",
                        "in": "cookie",
                        "name": "turnkeep_session",
                        "description": "The bundled page; unsafe methods check Origin",
                    },
                },
            },
        }
    )


class _Schemas:
    """Schemas of all types that the endpoints speak of, by reference, under the public names of the types."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        types: dict[Any, None] = {Problem: None, **dict.fromkeys(_STREAM_EVENTS.values())}
        for endpoint in endpoints:
            types |= dict.fromkeys(spec.type for spec in endpoint.responses if spec.type is not None)
            types |= dict.fromkeys(kind for kind in (endpoint.body, endpoint.query) if kind is not None)
        found, components = msgspec.json.schema_components(tuple(types), ref_template=_REF)
        self._of = {kind: _public_refs(schema) for kind, schema in zip(types, found, strict=True)}
        queries = {endpoint.query for endpoint in endpoints if endpoint.query is not None}
        self._queries = {query: _tidy(components.pop(query.__name__)) for query in queries}
        structs = _structs(types)
        named = {
            _public_name(name): _tidy(_always_there(_public_refs(schema), structs[name]))
            for name, schema in components.items()
        }
        self.components = dict(sorted(named.items()))

    def of(self, kind: Any) -> dict[str, Any]:
        schema: dict[str, Any] = self._of[kind]
        return schema

    def query(self, kind: Any) -> dict[str, dict[str, Any]]:
        properties: dict[str, dict[str, Any]] = self._queries[kind]["properties"]
        return properties

    def name(self, kind: Any) -> str | None:
        """The public name of a type, None for one that has no schema of its own."""
        reference = self._of[kind].get("$ref")
        return None if reference is None else reference.rpartition("/")[2]


def _structs(types: Iterable[Any]) -> dict[str, type[msgspec.Struct]]:
    """Every struct in these types, by the name that msgspec gives to its schema."""
    found: dict[str, type[msgspec.Struct]] = {}
    waiting: list[Any] = list(msgspec.inspect.multi_type_info(types))
    while waiting:
        info = waiting.pop()
        if isinstance(info, msgspec.inspect.StructType):
            kind: Any = info.cls
            origin = get_origin(kind) or kind
            inner = "".join(f"_{each.__name__}_" for each in get_args(kind))
            if origin.__name__ + inner in found:
                continue
            found[origin.__name__ + inner] = origin
            waiting += [field.type for field in info.fields]
        for name in ("type", "types", "item_type", "item_types", "key_type", "value_type"):
            within = getattr(info, name, ())
            waiting += within if isinstance(within, tuple) else [within]
    return found


def _always_there(schema: dict[str, Any], struct: type[msgspec.Struct]) -> dict[str, Any]:
    """A response names every field that the server always writes as required, also one with a default."""
    config = struct.__struct_config__
    if config.forbid_unknown_fields or config.omit_defaults:
        return schema
    properties = {
        name: {key: each[key] for key in each if key != "default"} for name, each in schema["properties"].items()
    }
    always = [name for name, each in schema["properties"].items() if "default" in each]
    return schema | {"properties": properties, "required": [*schema.get("required", []), *always]}


def _tidy(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as people and generators of types read it: a default is told in words, because generators take a field
    with a default for one that is always there."""
    properties = {name: _without_default(each) for name, each in schema["properties"].items()}
    tidied = {name: value for name, value in schema.items() if name != "title"} | {"properties": properties}
    if "description" in tidied:
        tidied["description"] = inspect.cleandoc(tidied["description"])
    return tidied


def _without_default(schema: dict[str, Any]) -> dict[str, Any]:
    default = schema.get("default")
    rest = {name: value for name, value in schema.items() if name != "default"}
    if default is None or default in ("", [], {}):
        return rest
    return rest | {"description": f"Default: `{msgspec.json.encode(default).decode()}`"}


def _public_refs(schema: Any) -> Any:
    """The schema with every reference to a list under its public name, and every choice of words as a string."""
    if isinstance(schema, dict):
        words = schema.get("enum")
        is_string = isinstance(words, list) and all(isinstance(word, str) for word in words)
        return ({"type": "string"} if is_string else {}) | {
            name: _REF.format(name=_public_name(value.rpartition("/")[2])) if name == "$ref" else _public_refs(value)
            for name, value in schema.items()
        }
    return [_public_refs(each) for each in schema] if isinstance(schema, list) else schema


def _public_name(name: str) -> str:
    """`AgentList` for what msgspec calls `Page_Agent_`."""
    inner = re.fullmatch(r"Page_(\w+)_", name)
    return name if inner is None else f"{inner[1]}List"


def _example(name: str | None, media_type: str, examples: Mapping[str, Any]) -> Any:
    """The example of a body as JSON: that of its schema, of the items of a list, or of its media type."""
    if name is None:
        return openapi_examples.BODIES[media_type]
    item = name.removesuffix("List")
    if item != name:
        return {"data": [msgspec.to_builtins(examples[item])], "next_cursor": None}
    return msgspec.to_builtins(examples[name])


def _operation(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "tags": [endpoint.tag],
        "x-policy": endpoint.policy.value,
        "parameters": _parameters(endpoint, schemas),
        "responses": _responses(endpoint, schemas),
    }
    match endpoint.policy:
        case Policy.PUBLIC | Policy.TURN | Policy.SIGNED:
            operation["security"] = []
        case Policy.KEY | Policy.SERVICE | Policy.OPERATOR:
            operation["security"] = [{"bearer": []}]
        case _:
            operation["security"] = [{"bearer": []}, {"page": []}]
    if endpoint.body is not None:
        operation["requestBody"] = {
            "required": not endpoint.is_body_optional,
            "content": {
                "application/json": {
                    "schema": schemas.of(endpoint.body),
                    "example": _example(schemas.name(endpoint.body), "application/json", openapi_examples.REQUESTS),
                }
            },
        }
    if endpoint.raw_body is not None:
        content = operation.get("requestBody", {}).get("content", {})
        example = _example(None, endpoint.raw_body, {})
        content |= {endpoint.raw_body: {"schema": _raw(endpoint.raw_body), "example": example}}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _raw(media_type: str) -> dict[str, Any]:
    """A body that is read as it arrives: a document, bytes, or a form of files."""
    if media_type == "application/json":
        return {"type": ["object", "array"]}
    if media_type != "multipart/form-data":
        return {"type": "string", "format": "binary"}
    files = {"type": "array", "minItems": 1, "items": {"type": "string", "format": "binary"}}
    return {"type": "object", "required": ["file"], "properties": {"file": files}}


def _parameters(endpoint: Endpoint, schemas: _Schemas) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for name in re.findall(r"{(\w+)}", endpoint.path):
        schema = _NAMED.get(name) or {"type": "string", "pattern": f"^{_PREFIXES[name]}_[0-9a-f]{{32}}$"}
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    if endpoint.query is not None:
        found += [
            {"name": name, "in": "query", "required": False, "schema": schema}
            for name, schema in schemas.query(endpoint.query).items()
        ]
    headers = (*endpoint.headers, *_EVERY) if endpoint.policy.identifies else endpoint.headers
    return [*found, *({"$ref": f"#/components/parameters/{_parameter_name(name)}"} for name in headers)]


def _header(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": 255}
    return {"name": name, "in": "header", "required": False, "schema": schema, "description": _HEADERS[name]}


def _parameter_name(header: str) -> str:
    return header.replace("-", "")


def _responses(endpoint: Endpoint, schemas: _Schemas) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for spec in endpoint.responses:
        response = responses.setdefault(str(spec.status), {"description": spec.meaning})
        if spec.type is not None:
            content = {"schema": schemas.of(spec.type)}
            if spec.media_type == "text/event-stream":
                content = _stream(schemas)
            content["example"] = _example(schemas.name(spec.type), spec.media_type, openapi_examples.RESPONSES)
            response.setdefault("content", {})[spec.media_type] = content
    for status in sorted(error_statuses(endpoint)):
        responses[str(status)] = {"$ref": f"#/components/responses/Problem{status}"}
    return responses


def _stream(schemas: _Schemas) -> dict[str, Any]:
    """One frame of the stream, and what its data holds for each event of the native format."""
    frame = {
        "type": "object",
        "required": ["data"],
        "properties": {
            "event": {"type": "string", "description": "In the native format one of `x-events`"},
            "id": {"type": "string", "description": "The cursor after this frame, opaque to clients"},
            "data": {"type": "string", "contentMediaType": "application/json"},
        },
    }
    return {"schema": frame, "x-events": {name: schemas.of(kind) for name, kind in _STREAM_EVENTS.items()}}


def error_statuses(endpoint: Endpoint) -> set[int]:
    """What can go wrong: what the endpoint says, and what its policy and inputs imply."""
    statuses = {500, *endpoint.errors}
    if endpoint.policy in {Policy.TURN, Policy.SIGNED}:
        statuses |= {401, 404}
    if endpoint.policy.identifies:
        statuses |= {401, 403, 404, 422, 429, 503}
    if endpoint.query is not None:
        statuses.add(422)
    if endpoint.body is not None:
        statuses |= {413, 422}
    return statuses


def _problem(status: int, schemas: _Schemas) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "content": {
            "application/problem+json": {
                "schema": schemas.of(Problem),
                "example": msgspec.to_builtins(openapi_examples.problem(status)),
            }
        },
    }
    headers = _ERROR_HEADERS.get(status)
    if headers:
        response["headers"] = {
            name: {"description": meaning, "schema": {"type": "string"}} for name, meaning in headers.items()
        }
    return response
