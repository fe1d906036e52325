"""The OpenAPI 3.1 document, made from the endpoints' own declarations: every answer, errors and streams included.

The examples of bodies are at the end of this module.
"""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from http import HTTPStatus
from importlib.metadata import version
from typing import Any, TypeVar, get_args, get_origin

import msgspec

from turnkeep.api.http.endpoints import Endpoint, Policy
from turnkeep_client import wire
from turnkeep_client.wire import events
from turnkeep_client.wire.base import CallId, FileId
from turnkeep_client.wire.errors import Problem

Shape = TypeVar("Shape", bound=msgspec.Struct)

_REF = "#/components/schemas/{name}"
_PREFIXES = {"conversation_id": "conv", "workspace_id": "ws", "delivery_id": "evt"}
"""The prefix of an id in a path, where it is not the name of the parameter."""
_NAMED: dict[str, dict[str, Any]] = {
    "row": {"type": "integer", "minimum": 1, "maximum": 999_999_999},
    "span_id": {"type": "string", "pattern": "^[a-z]+(-[0-9]+){0,2}$"},
    "skill": {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$"},
    "user": {"type": "string", "minLength": 1, "maxLength": 255},
}
"""What a path names otherwise than by an id."""
_STREAM_EVENTS: dict[str, type] = {
    "turn": events.TurnBegan,
    "delta": events.Delta,
    "tool_calls": events.ToolCalls,
    "step": events.Step,
    "sources": events.Sources,
    "files": events.Files,
    "reset": events.Reset,
    "approval": events.Approval,
    "client_calls": events.ClientCalls,
    "decided": events.Decided,
    "steered": events.Steered,
    "result": events.Result,
    "error": events.Failure,
}
_HEADERS = {
    "Idempotency-Key": "Up to 255 characters. A repeat with the same body changes nothing and gets the same answer.",
    "If-None-Match": "The `ETag` of what you have: 304 if it is still the same.",
    "If-Range": "The `ETag` that the range belongs to; without a match the whole file is sent.",
    "Range": "One range of bytes, as `bytes=0-1023`; several are ignored.",
    "Last-Event-ID": "The cursor to continue after, as a browser sends it; overrides `after`.",
    "Turnkeep-Share": "The token of a share link: what follows `#` in it.",
    "Turnkeep-User": "Act for this user of the host (service keys only); created at the first request.",
    "Turnkeep-Workspace": "The workspace, where it is not the default one (service keys only).",
}
_EVERY = ("Turnkeep-User", "Turnkeep-Workspace")
_ERROR_HEADERS = {
    401: {"WWW-Authenticate": "How to identify"},
    409: {"x-should-retry": "Always `false`: a retry does not help"},
    429: {"Retry-After": "Seconds to wait before a retry, if known"},
    503: {"Retry-After": "Seconds to wait before a retry"},
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
    if config.forbid_unknown_fields:
        return schema
    if config.omit_defaults:
        return schema | {"properties": {name: _said(each) for name, each in schema["properties"].items()}}
    properties = {
        name: {key: each[key] for key in each if key != "default"} for name, each in schema["properties"].items()
    }
    always = [name for name, each in schema["properties"].items() if "default" in each]
    return schema | {"properties": properties, "required": [*schema.get("required", []), *always]}


def _said(schema: dict[str, Any]) -> dict[str, Any]:
    """A field that is None by default is left out, so where it is there, it is not null."""
    if schema.get("default", ...) is not None or "anyOf" not in schema:
        return schema
    kinds = [kind for kind in schema["anyOf"] if kind != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "anyOf"}
    return rest | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds})


def _tidy(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema as people and generators of types read it: a default is described in words, because generators
    take a field with a default for one that is always there."""
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
        return BODIES[media_type]
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
                    "example": _example(schemas.name(endpoint.body), "application/json", REQUESTS),
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
        prefix = _PREFIXES.get(name, name.removesuffix("_id"))
        schema = _NAMED.get(name) or {"type": "string", "pattern": f"^{prefix}_[0-9a-f]{{32}}$"}
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
            content["example"] = _example(schemas.name(spec.type), spec.media_type, RESPONSES)
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
    if endpoint.policy is not Policy.SIGNED:
        statuses.add(422)  # an unknown parameter in the query
    if endpoint.body is not None:
        statuses |= {413, 422}
    return statuses


def _problem(status: int, schemas: _Schemas) -> dict[str, Any]:
    response: dict[str, Any] = {
        "description": HTTPStatus(status).phrase,
        "content": {
            "application/problem+json": {
                "schema": schemas.of(Problem),
                "example": msgspec.to_builtins(_problem_example(status)),
            }
        },
    }
    headers = _ERROR_HEADERS.get(status)
    if headers:
        response["headers"] = {
            name: {"description": meaning, "schema": {"type": "string"}} for name, meaning in headers.items()
        }
    return response


def _id(prefix: str, last: int) -> str:
    return f"{prefix}_0192f0c1a2b37c4d8e5f{last:012x}"


AT = 1_794_816_000_000
"""2026-11-16, in milliseconds since 1970."""
PAGE, TABLE, FILE, CONVERSATION, TURN = (
    _id(prefix, n) for n, prefix in enumerate(("page", "table", "file", "conv", "turn"), 1)
)
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
ANSWER = "We are open from 9 to 17 [1]."

_FIELDS: dict[str, Any] = {
    "agent_id": _id("agent", 6),
    "attachments": [],
    "attempt": 1,
    "conversation_id": CONVERSATION,
    "created_at": AT,
    "events_url": f"/v1/turns/{TURN}/events",
    "expires_at": AT + 900_000,
    "head_turn_id": TURN,
    "message_count": 2,
    "metadata": {"ticket": "4711"},
    "mime_type": "application/pdf",
    "model": "openai/gpt-5",
    "provider": "openai",
    "role": "assistant",
    "settled_at": AT + 2_150,
    "size": 48_213,
    "sources": [
        wire.Source(title="Handbook", snippet="Opening hours: 9 to 17.", page_id=PAGE, place="Hours", number=1)
    ],
    "started_at": AT,
    "status": "succeeded",
    "turn_count": 1,
    "turn_id": TURN,
    "updated_at": AT + 2_150,
    "usage": wire.Usage(input_tokens=412, output_tokens=23, cache_read_tokens=256),
    "user": wire.UserRef(id=_id("user", 7), external_id="ada@example.com", name="Ada"),
    "user_id": _id("user", 7),
    "workspace_id": _id("ws", 8),
}
"""The value that a field of this name has in examples, if the example does not say otherwise."""


def _made(shape: type[Shape], **given: Any) -> Shape:
    """An example of that shape. A required field that is not given has the value of its name in `_FIELDS`, else null.
    So a new field that may be null needs no line here."""
    required = [field.name for field in msgspec.structs.fields(shape) if field.required]
    return shape(**{name: _FIELDS.get(name) for name in required} | given)


_file = _made(wire.File, id=FILE, name="report.pdf", sha256=SHA256, source="user")
_content = (
    wire.StepPart(
        id=CallId(_id("call", 9)),
        name="search_pages",
        status="succeeded",
        args={"query": "hours"},
        result="1 page",
        duration_ms=12,
    ),
    wire.TextPart(text=ANSWER),
)
_turn = _made(wire.Turn, id=TURN, response=ANSWER, files=[])
_message = _made(wire.Message, id=_id("msg", 10), content=_content)
_mcp_connection = _made(
    wire.McpConnection,
    id=_id("mcp", 14),
    url="https://mcp.example.com/mcp",
    issuer="https://login.example.com",
    status="connected",
    problem=None,
    connected_at=AT,
)
_mcp_tool = wire.ListedMcpTool(
    name="search",
    description="Search the tickets.",
    input_schema={"type": "object", "properties": {"query": {"type": "string"}}},
    idempotent=True,
)

_webhook = _made(
    wire.Webhook,
    id=_id("webhook", 13),
    url="https://shop.example.com/turnkeep",
    events=["turn.succeeded", "turn.failed"],
    is_enabled=True,
    updated_at=AT,
)
_conversation = _made(
    wire.Conversation,
    id=CONVERSATION,
    kind="chat",
    model=None,
    title="Opening hours",
    preview="When are you open?",
    external_id="ticket-4711",
    queued_turns=[],
)
_table = _made(
    wire.Table,
    id=TABLE,
    name="Prices",
    description="What things cost",
    columns=[wire.TableColumn(name="Item", type="text"), wire.TableColumn(name="Price", type="number")],
    row_count=1,
)
_text = "# Hours\n\nOpening hours: 9 to 17."

RESPONSES: dict[str, Any] = {
    "Accepted": _made(wire.Accepted),
    "Added": _made(wire.Added, rows=1, table=_table, first_row=1),
    "Agent": _made(
        wire.Agent,
        id=_FIELDS["agent_id"],
        name="Support",
        description="Knows the handbook.",
        starters=["When are you open?"],
        workspace_id=_FIELDS["workspace_id"],
        instructions="Answer from the handbook.",
        tools=["search_pages"],
        mcp_servers=[],
        skills=[],
        sandbox=False,
        environment={},
        limits=wire.AgentLimits(tool_rounds=8),
        created_at=AT,
        updated_at=AT,
    ),
    "Answered": _made(wire.Answered, turn=_turn, message=_message),
    "BagReport": {"objects": 120, "files": 120, "orphans": [], "missing": []},
    "Conversation": _conversation,
    "File": _file,
    "ConversationFolder": wire.ConversationFolder(name="Customers", conversations=12),
    "MovedConversations": wire.MovedConversations(conversations=12),
    "FileText": wire.FileText(file_id=FileId(FILE), text="Annual report", unit="page"),
    "Health": wire.Health(status="ok"),
    "Imported": wire.Imported(
        conversation=_conversation, remarks=["A picture became a line of text."], conversations=[_conversation]
    ),
    "Erasure": wire.Erasure(
        id=_id("erasure", 12),
        status="done",
        counts=wire.ErasedCounts(conversations=18, turns=96, messages=192, files=7, bytes=2_481_152),
        created_at=_FIELDS["created_at"],
        done_at=_FIELDS["created_at"] + 4_000,
    ),
    "StartedErasure": wire.StartedErasure(erasure_id=_id("erasure", 12)),
    "Webhook": _webhook,
    "WebhookDelivery": _made(
        wire.WebhookDelivery,
        id=_id("evt", 14),
        webhook_id=_webhook.id,
        type="turn.succeeded",
        status="delivered",
        attempts=1,
        next_attempt_at=None,
        last_attempt_at=AT,
        response_status=204,
        payload=wire.WebhookPayload(
            type="turn.succeeded",
            timestamp="2026-11-16T09:00:00.000Z",
            data={"workspace_id": _FIELDS["workspace_id"], "conversation_id": CONVERSATION, "status": "succeeded"},
        ),
    ),
    "Feedback": _made(wire.Feedback, rating="down", comment="It is closed on Mondays."),
    "FeedbackItem": _made(wire.FeedbackItem, rating="down", comment="It is closed on Mondays."),
    "Share": _made(
        wire.Share,
        id=_id("share", 15),
        title="Opening hours",
        with_files=False,
        url="https://chat.example.com/share#tks_…",
    ),
    "SharedConversation": wire.SharedConversation(
        title="Opening hours",
        with_files=False,
        created_at=AT,
        expires_at=AT + 2_592_000_000,
        data=[
            wire.SharedMessage(
                role="user",
                content=[wire.TextPart(text="When do you open?")],
                attachments=[],
                sources=[],
                hidden_files=0,
                status="succeeded",
                created_at=AT,
            )
        ],
        next_cursor=None,
    ),
    "Invite": _made(wire.Invite, id=_id("invite", 12), url="https://chat.example.com/invite#tki_…"),
    "Key": _made(
        wire.Key,
        id=_id("key", 11),
        name="shop backend",
        workspace_id=None,
        monthly_message_limit=10_000,
        requests_per_minute=600,
    ),
    "KnowledgePage": _made(wire.KnowledgePage, id=PAGE, title="Handbook", content=_text, size=32),
    "Me": _made(wire.Me, role="member", max_file_bytes=104_857_600, max_files_per_message=20),
    "Message": _message,
    "ModelName": _made(wire.ModelName, id="openai/gpt-5"),
    "MonthlyUsage": wire.MonthlyUsage(
        month="2026-11",
        messages=42,
        by_source=wire.Messages(ui=30, api=12),
        input_tokens=51_300,
        output_tokens=8_240,
        limit=10_000,
        user=_FIELDS["user"],
        cache_read_tokens=12_000,
        cost=0.31,
        limits=[wire.LimitUse(scope="user", name="monthly_message_limit", limit=10_000, used=42)],
        group_by="model",
        rows=[
            wire.UsageRow(
                group="openai/gpt-5",
                messages=42,
                input_tokens=51_300,
                output_tokens=8_240,
                cache_read_tokens=12_000,
                cache_write_tokens=0,
                cost=0.31,
            )
        ],
    ),
    "BegunMcpConnection": wire.BegunMcpConnection(
        connection=_mcp_connection, authorization_url="https://login.example.com/authorize?…"
    ),
    "McpConnection": _mcp_connection,
    "McpTools": wire.McpTools(
        tools=[_mcp_tool],
        problem=None,
        issuer=None,
        can_register=True,
        redirect_uri="https://chat.example.com/mcp/callback",
        connection=_mcp_connection,
    ),
    "NativeTool": wire.NativeTool(
        name="order_status",
        description="The state of an order, by its number.",
        input_schema={"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]},
        idempotent=True,
    ),
    "AllowedImage": wire.AllowedImage(name="science", packages=["matplotlib", "numpy", "pandas"]),
    "Org": _made(wire.Org, id=_id("org", 12), name="Example Ltd"),
    "PageItem": _made(wire.PageItem, id=PAGE, title="Handbook", size=32),
    "PendingUpload": wire.PendingUpload(
        file=msgspec.structs.replace(_file, conversation_id=None, sha256=None),
        upload=_made(wire.UploadTicket, method="PUT", url=f"/v1/files/{FILE}/content?signature=…", headers={}),
    ),
    "Replay": wire.Replay(
        messages=[{"role": "user", "content": "When are you open?"}],
        system=None,
        turns_included=1,
        turns_dropped=0,
        chars=18,
    ),
    "TurnReplay": wire.TurnReplay(
        messages=[{"role": "user", "content": "When are you open?"}],
        system=None,
        turns_included=1,
        turns_dropped=0,
        chars=18,
        tools=[
            wire.OfferedTool(
                name="opening_hours",
                description="Looks up the opening hours of a day.",
                input_schema={"type": "object", "properties": {"day": {"type": "string"}}},
            )
        ],
        missing=[],
    ),
    "Row": _made(wire.Row, row=1, values={"Item": "Tea", "Price": 2.5}),
    "SandboxConfig": wire.SandboxConfig(
        agent=wire.SandboxAgent(model="openai/gpt-5", instructions="Draw what is asked for."),
        prompt="Draw a bar chart of the sales.",
        gateway=_made(
            wire.SandboxGateway, base_url=f"https://turnkeep.example/v1/sandbox/{TURN}", token="tkg_…", tools=()
        ),
        conversation=(wire.ChatTurn(role="user", content="Hello", ts=AT),),
        chat_id=CONVERSATION,
        limits=wire.SandboxLimits(context_chars=400_000, turn_seconds=600.0),
    ),
    "SandboxEnvironment": wire.SandboxEnvironment(variables={"REGION": "eu"}, setup_script=None),
    "Steering": _made(wire.Steering, message_id="msg_0192f0c1a2b37c4d8e5f000000000009", queued_turn_id=TURN),
    "StreamUrl": _made(wire.StreamUrl, url=f"https://chat.example.com/v1/turns/{TURN}/stream?signature=…"),
    "Table": _table,
    "PageSession": _made(
        wire.PageSession,
        id=_id("session", 13),
        method="oidc",
        browser="Mozilla/5.0 …",
        last_used_at=AT,
        is_current=True,
    ),
    "SpanContent": wire.SpanContent(id="tool-1", args={"query": "opening hours"}, result={"hits": 1}),
    "Timeline": _made(
        wire.Timeline,
        access="full",
        agent_name="Front desk",
        error=None,
        cost=0.0014,
        now=AT + 9_000,
        spans=[
            wire.Span(
                id="model-0",
                kind="model",
                name="openai/gpt-5",
                status="succeeded",
                started_at=AT,
                ended_at=AT + 900,
                iteration=0,
                first_token_ms=310,
                usage=_FIELDS["usage"],
                cost=0.0011,
                has_content=True,
            ),
            wire.Span(
                id="tool-1",
                kind="tool",
                name="search_pages",
                status="succeeded",
                started_at=AT + 905,
                ended_at=AT + 1_010,
                parent_id="model-0",
                has_content=True,
            ),
        ],
    ),
    "UsageTurn": _made(
        wire.UsageTurn,
        id=TURN,
        source="ui",
        input_tokens=412,
        output_tokens=23,
        cache_read_tokens=256,
        cache_write_tokens=0,
        cost=0.0014,
    ),
    "SignedOut": wire.SignedOut(provider_url=None),
    "SigninWays": wire.SigninWays(provider=wire.IdentityProvider(name="Example Ltd", url="/signin/oidc")),
    "Token": _made(wire.Token, token="tkt_…"),
    "ToolSecret": wire.ToolSecret(tool_secret="tksec_…"),
    "SandboxAnswers": wire.SandboxAnswers(
        answers=[wire.SandboxAnswer(call_id="call_1", verdict="allow", digest="9f86d081…")]
    ),
    "ToolOutcome": wire.ToolOutcome(result={"status": "shipped"}, error=None, sources=[], passages=[]),
    "TraceRow": _made(
        wire.TraceRow,
        id=_message.id,
        turn_sequence=1,
        iteration=1,
        internal=False,
        blocks=[wire.Text(text=ANSWER)],
        content=_content,
        provider="openai/gpt-5",
    ),
    "Turn": _turn,
    "User": _made(
        wire.User,
        id=_FIELDS["user_id"],
        external_id="ada@example.com",
        name="Ada",
        role="member",
        is_disabled=False,
        monthly_token_limit=2_000_000,
    ),
    "Workspace": _made(
        wire.Workspace,
        id=_FIELDS["workspace_id"],
        name="Support",
        is_default=True,
        model=None,
        user_monthly_message_limit=500,
    ),
}
"""By the names of their schemas. A test validates every example against its schema."""

REQUESTS: dict[str, Any] = {
    "Again": {"model": "anthropic/claude-sonnet-4-5"},
    "AgentTrial": {"agent": {"name": "Support", "instructions": "Answer in French."}, "message": "When are you open?"},
    "McpProbe": {"server": {"name": "tickets", "url": "https://mcp.example.com/mcp"}},
    "NewMcpConnection": {"url": "https://mcp.example.com/mcp"},
    "AgentPatch": {"instructions": "Answer from the handbook, in two sentences."},
    "Completion": {"size": 48_213, "sha256": SHA256},
    "ClientResults": {"results": [{"call_id": "call_1", "result": {"charge": 80}}]},
    "ConversationPatch": {"title": "Opening hours"},
    "Copy": {"conversation_id": CONVERSATION},
    "Decisions": {"decisions": [{"call_id": "call_1", "decision": "deny", "reason": "Too expensive."}]},
    "Edit": {"message": "When are you open on Sundays?"},
    "FolderChange": {"name": "Customers", "new_name": "Clients"},
    "NewAgent": {"name": "Support", "instructions": "Answer from the handbook.", "tools": ["search_pages"]},
    "NewConversation": {"title": "Opening hours", "agent_id": _FIELDS["agent_id"], "external_id": "ticket-4711"},
    "NewFile": {"name": "report.pdf", "size": 48_213, "mime_type": "application/pdf"},
    "InviteSecret": {"token": "tki_…"},
    "NewInvite": {"user": "ada@example.com", "name": "Ada", "role": "member"},
    "NewFeedback": {"rating": "down", "comment": "It is closed on Mondays."},
    "NewShare": {"with_files": False, "ttl_seconds": 604_800},
    "NewKey": {"name": "shop backend", "requests_per_minute": 600},
    "NewOrg": {"name": "Example Ltd"},
    "NewSteer": {"message": "In French, please."},
    "NewStreamUrl": {"ttl_seconds": 300},
    "NewPage": {"title": "Handbook", "content": _text},
    "NewRows": {"rows": [{"Item": "Tea", "Price": 2.5}]},
    "NewRun": {"prompt": "Draw a bar chart of the sales.", "attachment_ids": [FILE]},
    "NewTable": {"name": "Prices", "columns": [{"name": "Item"}, {"name": "Price", "type": "number"}]},
    "NewToken": {
        "user": "ada",
        "ttl_seconds": 3_600,
        "scopes": {"agents": [_FIELDS["agent_id"]], "models": [], "features": ["files"]},
    },
    "NewTurn": {"message": "When are you open?", "conversation_id": CONVERSATION},
    "NewWebhook": {"url": "https://shop.example.com/turnkeep", "events": ["turn.succeeded", "turn.failed"]},
    "WebhookPatch": {"is_enabled": False},
    "NewWorkspace": {"name": "Support"},
    "PageChange": {"content": "# Hours\n\nOpening hours: 8 to 18."},
    "RowValues": {"values": {"Price": 2.75}},
    "AwaitedCalls": {"call_ids": ["call_1"]},
    "SandboxToolCall": {"call_id": "call_1", "name": "order_status", "arguments": {"order": 4711}},
    "TableChange": {"description": "What things cost in 2026"},
    "UserPatch": {"name": "Ada", "monthly_token_limit": 2_000_000},
    "WorkspacePatch": {"user_monthly_message_limit": 500},
}
"""Only the fields that matter, as a caller would send them."""

_SSE = {"event": "delta", "id": "1.3", "data": '{"iteration":1,"kind":"text","text":"We are open"}'}
_ZIP = "UEsFBgAAAAAAAAAAAAAAAAAAAAAAAA=="

BODIES: dict[str, Any] = {
    "text/event-stream": _SSE,
    "application/zip": _ZIP,
    "application/octet-stream": "the bytes of the file",
    "*/*": "dGhlIGJ5dGVzIG9mIHRoZSBmaWxl",
    "text/csv": "Item,Price\r\nTea,2.5\r\n",
    "text/plain": "# TYPE turnkeep_turns_total counter\nturnkeep_turns_total 42.0\n",
    "application/x-ndjson": '{"type":"result","message":"Done."}\n',
    "multipart/form-data": {"file": ["the bytes of the file"]},
    "application/json": {"messages": [{"role": "user", "content": "When are you open?"}]},
}
"""Bodies that are no schema of ours, by their media type."""

_PROBLEMS = {
    401: ("unauthorized", "No key, a wrong key, or one that was revoked."),
    403: ("forbidden", "Only admins of the workspace may do this."),
    404: ("not_found", "There is no such conversation."),
    408: ("request_timeout", "The request was begun and not finished in time."),
    409: ("conflict", "Something else happened first."),
    413: ("body_too_large", "The body is over its limit."),
    415: ("unsupported_media_type", "Files of this type are not accepted."),
    416: ("range_not_satisfiable", "The file has no such bytes."),
    422: ("invalid_request", "Object contains unknown field `nmae`. Allowed: `name`."),
    429: ("rate_limited", "Too many requests in the last minute."),
    500: ("internal", "The server's log has it as req_4711."),
    503: ("unavailable", "The database cannot be reached just now."),
    507: ("storage_full", "The disk or the bucket is full."),
}


def _problem_example(status: int) -> Problem:
    """An error with this status."""
    code, detail = _PROBLEMS[status]
    return Problem(
        type=f"urn:turnkeep:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        request_id="req_4711",
    )
