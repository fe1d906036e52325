"""The client for the server that sent a turn: environment, configuration, files and results, the model and the tools.

The shapes are those of the wire (`turnkeep_client.wire.sandbox`). Unknown fields are passed over, so that a newer
server can talk to an older runner. A known field that is wrong is refused. Each token is valid for one call.

The model and the tools that the server calls are reached through its gateway. No key of a provider and no credential of
a tool ever leaves the server. The model is reached by Chat Completions. Its reasoning comes in the field
`reasoning_details` of a delta, as opaque objects; they are sent back unchanged with the calls that followed them, so
that signatures stay valid.
"""

import asyncio
import io
import re
import tempfile
from collections.abc import Mapping, Sequence
from typing import IO, Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec
from msgspec import Struct

from turnkeep.errors import InvalidRequest, WorldError
from turnkeep.files.zip_files import ZipRefused, safe_path
from turnkeep.ids import CallId
from turnkeep.providers.drafts import Draft
from turnkeep.providers.openai import ChatDelta, OpenAIChatDraft, OpenAIProvider
from turnkeep.providers.ports import ModelRequest, Reply
from turnkeep.providers.wire import Account, ProviderSession
from turnkeep.sandbox.workspace import Asset
from turnkeep.tools.ports import CallContext, Outcome, Passage, ToolSpec
from turnkeep_client.wire.blocks import JsonObject, JsonValue, ToolUse
from turnkeep_client.wire.events import Source
from turnkeep_client.wire.sandbox import (
    FEATURES_HEADER,
    WAITS,
    AwaitedCalls,
    SandboxAnswer,
    SandboxAnswers,
    SandboxAssets,
    SandboxConfig,
    SandboxEnvironment,
    SandboxGateway,
    SandboxSkill,
    SandboxTool,
)

ANSWER_BYTES = 32 * 1024 * 1024
"""Maximum size of a response. The configuration contains the skills."""
VARIABLE_BYTES = 128 * 1024
DETAILS = "reasoning_details"
AGAIN_SECONDS = 1.0
"""The pause before a server that did not answer is asked again."""
GRACE_SECONDS = 15.0
"""The server limits the time of a call. The runner waits this much longer for the server's response."""
TOOL_ANSWER_BYTES = 8 * 1024 * 1024

_PIECE_BYTES = 256 * 1024
_SPOOL_BYTES = 8 * 1024 * 1024
_TIMEOUT = aiohttp.ClientTimeout(total=600, connect=10, sock_read=60)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SKILL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_UNKNOWN = "outcome_unknown: the call may or may not have taken effect; check before you repeat it."

Shape = TypeVar("Shape", bound=Struct)


class ServerCallFailed(WorldError):
    """The server could not be reached, or its response does not follow the contract."""

    code = "sandbox_origin"


class TokenRefused(ServerCallFailed):
    """The token was used before, has expired, or belongs to another turn."""

    code = "sandbox_token"


class ServerClient:
    """The server of one turn. Redirects are not followed, so that a token reaches no other server."""

    def __init__(self, session: aiohttp.ClientSession, agent_url: str) -> None:
        if urlsplit(agent_url).scheme not in {"http", "https"} or not urlsplit(agent_url).hostname:
            raise InvalidRequest("agent_url must be an http or https address.")
        self._session = session
        self._url = agent_url.rstrip("/")

    async def environment(self, otp_setup: str) -> SandboxEnvironment:
        return await self._get("env", otp_setup, SandboxEnvironment)

    async def config(self, otp_run: str) -> SandboxConfig:
        return await self._get("config", otp_run, SandboxConfig, {FEATURES_HEADER: WAITS})

    async def bag(self, assets: SandboxAssets, *, max_bytes: int) -> IO[bytes]:
        """The zip of the conversation's files, in a temporary file. Close it."""
        file = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES)  # noqa: SIM115 - the caller closes it
        try:
            async with self._session.get(assets.url, allow_redirects=False, timeout=_TIMEOUT) as response:
                _check_status(response, "The bag")
                size = 0
                async for piece in response.content.iter_chunked(_PIECE_BYTES):
                    size += len(piece)
                    if size > max_bytes:
                        raise ServerCallFailed(f"The bag is larger than the workspace ({max_bytes:,} bytes).")
                    file.write(piece)
        except (aiohttp.ClientError, TimeoutError) as exc:
            file.close()
            raise ServerCallFailed(f"The bag could not be fetched: {_words(exc)}") from exc
        except BaseException:
            file.close()
            raise
        file.seek(0)
        return file

    async def results(self, otp_upload: str, assets: Sequence[Asset]) -> None:
        """Send the files back, all in one request. They stay open: their owner closes them."""
        form = aiohttp.FormData(quote_fields=False)  # otherwise "a b.txt" becomes a%20b.txt
        for asset in assets:
            form.add_field("file", _LentFile(asset.file), filename=asset.path, content_type="application/octet-stream")
        try:
            async with self._session.post(
                f"{self._url}/results",
                data=form,
                headers={"Authorization": otp_upload},
                allow_redirects=False,
                timeout=_TIMEOUT,
            ) as response:
                detail = await _detail(response) if response.status >= 400 else ""
                _check_status(response, "The files", detail)
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise ServerCallFailed(f"The files could not be handed back: {_words(exc)}") from exc

    async def answers(self, gateway: SandboxGateway, call_ids: Sequence[str]) -> Sequence[SandboxAnswer]:
        """The answers to these calls. The server ends the wait, so this asks until they are there. A server that does
        not answer may be starting again, and is asked again.

        Raises TokenRefused once the turn has ended.
        """
        body = msgspec.json.encode(AwaitedCalls(call_ids=list(call_ids)))
        headers = {"Authorization": f"Bearer {gateway.token}", "Content-Type": "application/json"}
        while True:
            try:
                async with self._session.post(
                    f"{gateway.base_url}/answers", data=body, headers=headers, allow_redirects=False, timeout=_TIMEOUT
                ) as response:
                    if response.status < 500:
                        _check_status(response, "/answers")
                        data = await _read_all(response)
                        found = read_shape(data, SandboxAnswers, origin="/answers")
                        if found.answers is not None:
                            return found.answers
                        continue
            except (aiohttp.ClientError, TimeoutError):
                pass
            await asyncio.sleep(AGAIN_SECONDS)

    async def _get(self, name: str, token: str, kind: type[Shape], headers: Mapping[str, str] | None = None) -> Shape:
        try:
            async with self._session.get(
                f"{self._url}/{name}",
                headers={"Authorization": token, **(headers or {})},
                allow_redirects=False,
                timeout=_TIMEOUT,
            ) as response:
                _check_status(response, f"/{name}")
                data = await _read_all(response)
        except (aiohttp.ClientError, TimeoutError) as exc:
            raise ServerCallFailed(f"The server did not answer /{name}: {_words(exc)}") from exc
        try:
            found: Shape = read_shape(data, kind, origin=f"/{name}")
        except InvalidRequest as exc:
            raise ServerCallFailed(exc.detail) from exc
        return found


class _LentFile(io.IOBase):
    """A file that aiohttp reads and does not close. It would close it in a thread while the owner closes it too, and
    one of the two would fail."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return self._file.seekable()

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def fileno(self) -> int:
        return self._file.fileno()

    def close(self) -> None:
        """The owner closes it."""


async def _read_all(response: aiohttp.ClientResponse) -> bytes:
    data = bytearray()
    async for piece in response.content.iter_chunked(_PIECE_BYTES):
        data += piece
        if len(data) > ANSWER_BYTES:
            raise ServerCallFailed(f"The server's answer is longer than {ANSWER_BYTES:,} bytes.")
    return bytes(data)


async def _detail(response: aiohttp.ClientResponse) -> str:
    """The detail of a refusal, if the response is problem+json."""
    try:
        problem = read_shape(await response.content.read(64 * 1024), _Problem, origin="the answer")
    except InvalidRequest:
        return ""
    return str(problem.detail)


class _Problem(Struct, frozen=True):
    detail: str = ""


def _check_status(response: aiohttp.ClientResponse, what: str, detail: str = "") -> None:
    if response.status in {401, 403}:
        raise TokenRefused(f"{what}: the server refused the token (status {response.status}).")
    if not 200 <= response.status < 300:
        raise ServerCallFailed(f"{what}: the server answered with status {response.status}. {detail}".strip())


def _words(exc: BaseException) -> str:
    """The kind of a failure. Its message is left out: it may contain an address with a signature."""
    return type(exc).__name__


def read_shape(data: bytes, kind: type[Shape], *, origin: str) -> Shape:
    """The value, or InvalidRequest that names where it came from and what is wrong with it."""
    try:
        value = msgspec.json.decode(data, type=kind)
        if isinstance(value, SandboxEnvironment):
            _check_variables(value)
        elif isinstance(value, SandboxConfig):
            for skill in value.agent.skills:
                _check_skill(skill)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ValueError) as exc:
        raise InvalidRequest(f"{origin} does not fit the contract: {exc}") from exc
    return value


def _check_variables(environment: SandboxEnvironment) -> None:
    for name, value in environment.variables.items():
        if not _VARIABLE.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a variable")
        if "\0" in value or len(value.encode("utf-8", "replace")) > VARIABLE_BYTES:
            raise ValueError(f"the variable {name} is too long, or has a NUL in it")


def _check_skill(skill: SandboxSkill) -> None:
    if not _SKILL.fullmatch(skill.name):
        raise ValueError(f"{skill.name!r} is not the name of a skill")
    for path in skill.files:
        try:
            safe_path(path)
        except ZipRefused as exc:
            raise ValueError(f"the skill {skill.name}: {exc.detail}") from exc


# The gateway


class GatewayProvider(OpenAIProvider):
    """The model of one turn, reached by the runner's session. It remembers the reasoning that came before each call."""

    name = "gateway"

    def __init__(self, access: SandboxGateway, session: aiohttp.ClientSession) -> None:
        account = Account(api_key=access.token, base_url=access.base_url)
        super().__init__(account, api="chat", session=ProviderSession(session))
        self._reasoning_by_call: dict[CallId, list[JsonValue]] = {}

    async def _body(self, request: ModelRequest) -> JsonObject:
        body = await super()._body(request)
        return body | {"messages": [self._with_reasoning(message) for message in request.decoded().messages]}

    def _with_reasoning(self, message: Any) -> Any:
        """The message with the reasoning of its calls. A message that is encoded already is of an earlier turn."""
        calls = None if isinstance(message, msgspec.Raw) else message.get("tool_calls")
        reasoning = self._reasoning_by_call.get(calls[0]["id"]) if calls else None
        return message if reasoning is None else message | {DETAILS: reasoning}

    def _draft(self) -> Draft[Any]:
        return _GatewayDraft(self._reasoning_by_call)


class _GatewayDraft(OpenAIChatDraft):
    def __init__(self, reasoning: dict[CallId, list[JsonValue]]) -> None:
        super().__init__()
        self._reasoning_by_call = reasoning
        self._details: list[JsonValue] = []

    def add(self, name: bytes, data: bytes | bytearray) -> None:
        super().add(name, data)
        # The gateway sends an empty chunk while the model works on something that is not shown.
        self.is_alive = True

    def add_delta(self, delta: ChatDelta) -> None:
        if delta.reasoning_details:
            self._details.extend(delta.reasoning_details)
        super().add_delta(delta)

    def reply(self) -> Reply:
        reply = super().reply()
        calls = [block for block in reply.blocks if isinstance(block, ToolUse)]
        if calls and self._details:
            self._reasoning_by_call[calls[0].id] = self._details
        return reply


class ServerTool:
    """One tool that the server calls for this turn."""

    def __init__(self, offered: SandboxTool, access: SandboxGateway, session: aiohttp.ClientSession) -> None:
        self.spec = ToolSpec(
            name=offered.name,
            description=offered.description,
            input_schema=offered.input_schema,
            timeout_seconds=offered.timeout_seconds + 2 * GRACE_SECONDS,
            waits_for=offered.waits_for,
            identity=offered.identity,
        )
        self._access = access
        self._session = session
        self._timeout = aiohttp.ClientTimeout(total=offered.timeout_seconds + GRACE_SECONDS, connect=10)

    async def call(self, args: JsonObject, context: CallContext) -> Outcome:
        """Ask the server to call the tool. If its response is lost, the call is not repeated."""
        body = {"call_id": context.call_id, "name": self.spec.name, "arguments": args}
        try:
            async with self._session.post(
                f"{self._access.base_url}/tools",
                data=msgspec.json.encode(body),
                headers={"Authorization": f"Bearer {self._access.token}", "Content-Type": "application/json"},
                allow_redirects=False,
                timeout=self._timeout,
            ) as response:
                return await _outcome(response)
        except aiohttp.ClientConnectorError:
            return Outcome(error="The server that calls this tool cannot be reached now.")
        except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
            return Outcome(error=_UNKNOWN)


class _ToolResponse(Struct, frozen=True):
    result: JsonValue = None
    error: str | None = None
    sources: tuple[Source, ...] = ()
    passages: tuple[Passage, ...] = ()
    detail: str = ""


async def _outcome(response: Any) -> Outcome:
    data = bytearray()
    async for piece in response.content.iter_chunked(64 * 1024):
        data += piece
        if len(data) > TOOL_ANSWER_BYTES:
            return Outcome(error=f"The answer is longer than {TOOL_ANSWER_BYTES:,} bytes.")
    answer = msgspec.json.decode(data, type=_ToolResponse)
    if response.status == 200:
        return Outcome(result=answer.result, error=answer.error, sources=answer.sources, passages=answer.passages)
    return Outcome(error=f"The server did not call the tool (status {response.status}). {answer.detail}".rstrip())
