"""The OpenAPI 3.1 document, made from the endpoints' own declarations: every answer, errors and streams included."""

import re
from collections.abc import Iterable, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any

import msgspec

from turnkeep.api.http.endpoints import Endpoint, Policy
from turnkeep.api.http.problem_details import Problem
from turnkeep.model import events

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
    """Schemas of all types that the endpoints speak of, by reference."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        types: dict[Any, None] = {Problem: None, **dict.fromkeys(_STREAM_EVENTS.values())}
        for endpoint in endpoints:
            types |= dict.fromkeys(reply.type for reply in endpoint.replies if reply.type is not None)
            types |= dict.fromkeys(kind for kind in (endpoint.body, endpoint.query) if kind is not None)
        found, self.components = msgspec.json.schema_components(tuple(types), ref_template=_REF)
        self._of = dict(zip(types, found, strict=True))
        queries = {endpoint.query for endpoint in endpoints if endpoint.query is not None}
        self._queries = {query: self.components.pop(query.__name__) for query in queries}

    def of(self, kind: Any) -> dict[str, Any]:
        schema: dict[str, Any] = self._of[kind]
        return schema

    def query(self, kind: Any) -> dict[str, dict[str, Any]]:
        properties: dict[str, dict[str, Any]] = self._queries[kind]["properties"]
        return properties


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
            "content": {"application/json": {"schema": schemas.of(endpoint.body)}},
        }
    if endpoint.raw_body is not None:
        content = operation.get("requestBody", {}).get("content", {})
        content |= {endpoint.raw_body: {"schema": _raw(endpoint.raw_body)}}
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
    for reply in endpoint.replies:
        response = responses.setdefault(str(reply.status), {"description": reply.meaning})
        if reply.type is not None:
            content = {"schema": schemas.of(reply.type)}
            if reply.media_type == "text/event-stream":
                content = _stream(schemas)
            response.setdefault("content", {})[reply.media_type] = content
    for status in sorted(error_statuses(endpoint)):
        responses[str(status)] = _problem(status, schemas)
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
        "content": {"application/problem+json": {"schema": schemas.of(Problem)}},
    }
    headers = _ERROR_HEADERS.get(status)
    if headers:
        response["headers"] = {
            name: {"description": meaning, "schema": {"type": "string"}} for name, meaning in headers.items()
        }
    return response
