"""One example for each schema that the OpenAPI document uses as a body.

A response is a value of its type, so that a new field is missing here at once. A request is JSON as a caller would send
it: only the fields that matter. A test validates every example against its schema.
"""

from http import HTTPStatus
from typing import Any

from turnkeep_client import wire
from turnkeep_client.wire.base import CallId, ConversationId, FileId, MessageId, TurnId


def _id(prefix: str, last: int) -> str:
    return f"{prefix}_0192f0c1a2b37c4d8e5f{last:012x}"


AT = 1_794_816_000_000
"""2026-11-16, in milliseconds since 1970."""
WORKSPACE, USER, ORG, KEY = _id("ws", 1), _id("user", 2), _id("org", 3), _id("key", 4)
AGENT, CONVERSATION, TURN = _id("agent", 5), ConversationId(_id("conv", 6)), TurnId(_id("turn", 7))
QUESTION, ANSWER, FILE = MessageId(_id("msg", 8)), MessageId(_id("msg", 9)), FileId(_id("file", 10))
PAGE, TABLE, CALL = _id("page", 11), _id("table", 12), CallId(_id("call", 13))
EVENTS_URL = f"/v1/turns/{TURN}/events"
SHA256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

_usage = wire.Usage(input_tokens=412, output_tokens=23, cache_read_tokens=256)
_file = wire.File(
    id=FILE,
    conversation_id=CONVERSATION,
    message_id=QUESTION,
    name="report.pdf",
    mime_type="application/pdf",
    size=48_213,
    sha256=SHA256,
    source="user",
    created_at=AT,
)
_source = wire.Source(title="Handbook", snippet="Opening hours: 9 to 17.", page_id=PAGE, place="Hours", number=1)
_content = (
    wire.StepPart(
        id=CALL, name="search_pages", status="succeeded", args={"query": "hours"}, result="1 page", duration_ms=12
    ),
    wire.TextPart(text="We are open from 9 to 17 [1]."),
)
_turn = wire.Turn(
    id=TURN,
    conversation_id=CONVERSATION,
    status="succeeded",
    attempt=1,
    model="openai/gpt-5",
    usage=_usage,
    error=None,
    started_at=AT,
    settled_at=AT + 2_150,
    response="We are open from 9 to 17 [1].",
    files=[],
)
_message = wire.Message(
    id=ANSWER,
    conversation_id=CONVERSATION,
    turn_id=TURN,
    role="assistant",
    content=_content,
    attachments=[],
    sources=[_source],
    usage=_usage,
    status="succeeded",
    created_at=AT + 2_150,
)
_conversation = wire.Conversation(
    id=CONVERSATION,
    workspace_id=WORKSPACE,
    user_id=USER,
    kind="chat",
    agent_id=AGENT,
    model=None,
    workflow_id=None,
    title="Opening hours",
    preview="When are you open?",
    message_count=2,
    turn_count=1,
    head_turn_id=TURN,
    running_turn=None,
    metadata={"ticket": "4711"},
    created_at=AT,
    updated_at=AT + 2_150,
    queued_turns=[],
)
_agent = wire.Agent(
    id=AGENT,
    name="Support",
    model="openai/gpt-5",
    workspace_id=WORKSPACE,
    instructions="Answer from the handbook.",
    tools=["search_pages"],
    mcp_servers=[],
    skills=[],
    sandbox=False,
    environment={},
    limits=wire.AgentLimits(tool_rounds=8),
    created_at=AT,
    updated_at=AT,
)
_table = wire.Table(
    id=TABLE,
    workspace_id=WORKSPACE,
    name="Prices",
    description="What things cost",
    columns=[wire.TableColumn(name="Item", type="text"), wire.TableColumn(name="Price", type="number")],
    row_count=1,
    created_at=AT,
    updated_at=AT,
)

RESPONSES: dict[str, Any] = {
    "Accepted": wire.Accepted(conversation_id=CONVERSATION, turn_id=TURN, events_url=EVENTS_URL),
    "Added": wire.Added(rows=1, table=_table, first_row=1),
    "Agent": _agent,
    "Answered": wire.Answered(conversation_id=CONVERSATION, turn=_turn, message=_message),
    "BagReport": {"objects": 120, "files": 120, "orphans": [], "missing": []},
    "Conversation": _conversation,
    "File": _file,
    "FileText": wire.FileText(file_id=FILE, text="Annual report", unit="page"),
    "Health": wire.Health(status="ok"),
    "Imported": wire.Imported(conversation=_conversation, remarks=["A picture became a line of text."]),
    "Key": wire.Key(
        id=KEY,
        name="shop backend",
        workspace_id=None,
        monthly_message_limit=10_000,
        requests_per_minute=600,
        allowed_tools=None,
        created_at=AT,
        revoked_at=None,
    ),
    "KnowledgePage": wire.KnowledgePage(
        id=PAGE,
        workspace_id=WORKSPACE,
        title="Handbook",
        content="# Hours\n\nOpening hours: 9 to 17.",
        size=32,
        created_at=AT,
        updated_at=AT,
    ),
    "Me": wire.Me(
        user_id=USER,
        workspace_id=WORKSPACE,
        role="member",
        model="openai/gpt-5",
        max_file_bytes=104_857_600,
        max_files_per_message=20,
    ),
    "Message": _message,
    "ModelName": wire.ModelName(id="openai/gpt-5", provider="openai"),
    "MonthlyUsage": wire.MonthlyUsage(
        month="2026-11",
        messages=42,
        by_source=wire.Messages(ui=30, api=12),
        input_tokens=51_300,
        output_tokens=8_240,
        limit=10_000,
    ),
    "Org": wire.Org(id=ORG, name="Example Ltd", created_at=AT),
    "PageItem": wire.PageItem(id=PAGE, workspace_id=WORKSPACE, title="Handbook", size=32, created_at=AT, updated_at=AT),
    "PendingUpload": wire.PendingUpload(
        file=wire.File(
            id=FILE,
            conversation_id=None,
            message_id=None,
            name="report.pdf",
            mime_type="application/pdf",
            size=48_213,
            sha256=None,
            source="user",
            created_at=AT,
        ),
        upload=wire.UploadTicket(
            method="PUT", url=f"/v1/files/{FILE}/content?signature=…", headers={}, expires_at=AT + 900_000
        ),
    ),
    "Replay": wire.Replay(
        messages=[{"role": "user", "content": "When are you open?"}],
        system=None,
        turns_included=1,
        turns_dropped=0,
        chars=18,
    ),
    "Row": wire.Row(row=1, values={"Item": "Tea", "Price": 2.5}, created_at=AT, updated_at=AT),
    "SandboxConfig": wire.SandboxConfig(
        agent=wire.SandboxAgent(model="openai/gpt-5", instructions="Draw what is asked for."),
        prompt="Draw a bar chart of the sales.",
        gateway=wire.SandboxGateway(
            base_url=f"https://turnkeep.example/v1/sandbox/{TURN}",
            token="tkg_…",
            expires_at=AT + 600_000,
            tools=(),
        ),
        conversation=(wire.ChatTurn(role="user", content="Hello", ts=AT),),
        chat_id=CONVERSATION,
        limits=wire.SandboxLimits(context_chars=400_000, turn_seconds=600.0),
    ),
    "SandboxEnvironment": wire.SandboxEnvironment(variables={"REGION": "eu"}, setup_script=None),
    "Table": _table,
    "Token": wire.Token(token="tkt_…", expires_at=AT + 3_600_000),
    "ToolOutcome": wire.ToolOutcome(result={"status": "shipped"}, error=None, sources=[], passages=[]),
    "TraceRow": wire.TraceRow(
        id=ANSWER,
        conversation_id=CONVERSATION,
        turn_id=TURN,
        turn_sequence=1,
        iteration=1,
        role="assistant",
        internal=False,
        blocks=[wire.Text(text="We are open from 9 to 17 [1].")],
        content=_content,
        attachments=[],
        sources=[_source],
        metadata={},
        usage=_usage,
        provider="openai/gpt-5",
        created_at=AT + 2_150,
    ),
    "Turn": _turn,
    "Workspace": wire.Workspace(
        id=WORKSPACE,
        name="Support",
        is_default=True,
        model=None,
        monthly_message_limit=None,
        user_monthly_message_limit=500,
        created_at=AT,
    ),
}

REQUESTS: dict[str, Any] = {
    "Again": {"model": "anthropic/claude-sonnet-4-5"},
    "AgentPatch": {"instructions": "Answer from the handbook, in two sentences."},
    "Completion": {"size": 48_213, "sha256": SHA256},
    "ConversationPatch": {"title": "Opening hours"},
    "Copy": {"conversation_id": CONVERSATION},
    "Edit": {"message": "When are you open on Sundays?"},
    "NewAgent": {"name": "Support", "instructions": "Answer from the handbook.", "tools": ["search_pages"]},
    "NewConversation": {"title": "Opening hours", "agent_id": AGENT},
    "NewFile": {"name": "report.pdf", "size": 48_213, "mime_type": "application/pdf"},
    "NewKey": {"name": "shop backend", "requests_per_minute": 600},
    "NewOrg": {"name": "Example Ltd"},
    "NewPage": {"title": "Handbook", "content": "# Hours\n\nOpening hours: 9 to 17."},
    "NewRows": {"rows": [{"Item": "Tea", "Price": 2.5}]},
    "NewRun": {"prompt": "Draw a bar chart of the sales.", "attachment_ids": [FILE]},
    "NewTable": {"name": "Prices", "columns": [{"name": "Item"}, {"name": "Price", "type": "number"}]},
    "NewToken": {"user": "ada", "ttl_seconds": 3_600},
    "NewTurn": {"message": "When are you open?", "conversation_id": CONVERSATION},
    "NewWorkspace": {"name": "Support"},
    "PageChange": {"content": "# Hours\n\nOpening hours: 8 to 18."},
    "RowValues": {"values": {"Price": 2.75}},
    "SandboxToolCall": {"call_id": "call_1", "name": "order_status", "arguments": {"order": 4711}},
    "TableChange": {"description": "What things cost in 2026"},
    "WorkspacePatch": {"user_monthly_message_limit": 500},
}

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
    422: ("invalid_request", "Object contains unknown field `mesage`."),
    429: ("rate_limited", "Too many requests in the last minute."),
    500: ("internal", "The server's log has it as req_4711."),
    503: ("unavailable", "The database cannot be reached just now."),
    507: ("storage_full", "The disk or the bucket is full."),
}


def problem(status: int) -> wire.Problem:
    """An error with this status."""
    code, detail = _PROBLEMS[status]
    return wire.Problem(
        type=f"urn:turnkeep:error:{code}",
        title=HTTPStatus(status).phrase,
        status=status,
        detail=detail,
        code=code,
        request_id="req_4711",
    )
