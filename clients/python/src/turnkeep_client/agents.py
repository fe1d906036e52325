"""Agents: save them, give them skills, and run one once without a conversation.

A run is one turn of an agent in a sandbox, as the lines that the sandbox writes. It cannot be resumed.
"""

from __future__ import annotations

import asyncio
import io
import os
import zipfile
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from turnkeep_client.errors import ConnectionLost
from turnkeep_client.stream import TURN_HEADER
from turnkeep_client.transport import Refusal, Resource, Transport, given, lines_of, part
from turnkeep_client.wire import Accepted, Agent, AllowedImage, McpConnection, McpTools, ToolSecret
from turnkeep_client.wire.base import without_unset
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.errors import Defect, InvalidRequest, NotFound, WorldError
from turnkeep_client.wire.sandbox import DeltaLine, ErrorLine, Line, ResultLine, SandboxLog, decode_line

NDJSON = {"accept": "application/x-ndjson"}
MOST_BYTES = 2 * 1024 * 1024
"""Limits of the server. A folder that was named by mistake is not read to its end."""
SKILL_FILE = "SKILL.md"


class AgentFields(TypedDict, total=False):
    """What an agent is made of, beside its name."""

    avatar: str
    description: str
    starters: Sequence[str]
    instructions: str
    model: str | None
    tools: Sequence[str | JsonObject]
    mcp_servers: Sequence[JsonObject]
    skills: Sequence[JsonObject]
    sandbox: bool
    environment: JsonObject


class AgentChanges(AgentFields, total=False):
    """What can be changed of an agent."""

    name: str


class Agents(Resource):
    """Instructions, a model and tools under a name."""

    def list(self, *, limit: int | None = None) -> AsyncGenerator[Agent, None]:
        """The agents of the workspace."""
        return self._pages("/v1/agents", Agent, limit=limit)

    async def get(self, agent_id: str) -> Agent:
        """One agent. Members see less of it than admins."""
        return await self._transport.call("GET", f"/v1/agents/{part(agent_id)}", Agent)

    async def create(self, /, name: str, **fields: Unpack[AgentFields]) -> Agent:
        """Save a new agent. Its `tool_secret` is shown only here; `warnings` say what does not work just now."""
        return await self._transport.call("POST", "/v1/agents", Agent, body={"name": name, **fields})

    async def update(self, /, agent_id: str, **fields: Unpack[AgentChanges]) -> Agent:
        """Change the given fields; those left out stay."""
        return await self._transport.call("PATCH", f"/v1/agents/{part(agent_id)}", Agent, body=fields)

    async def replace(self, agent_id: str, spec: Mapping[str, Any]) -> Agent:
        """Give an agent other fields, all of them."""
        return await self._transport.call("PUT", f"/v1/agents/{part(agent_id)}", Agent, body=dict(spec))

    async def delete(self, agent_id: str) -> None:
        """Delete an agent. Its conversations stay."""
        await self._transport.fetch("DELETE", f"/v1/agents/{part(agent_id)}")

    def sandbox_images(self) -> AsyncGenerator[AllowedImage, None]:
        """The images that agents can name in `environment`, with their Python packages."""
        return self._pages("/v1/sandbox-images", AllowedImage)

    async def rotate_tool_secret(self, agent_id: str) -> str:
        """Make a new secret for the signatures of the agent's tool calls. It is shown only here."""
        made = await self._transport.call("POST", f"/v1/agents/{part(agent_id)}/tool_secret", ToolSecret)
        return made.tool_secret

    async def add_skill(self, agent_id: str, source: str | os.PathLike[str]) -> Agent:
        """Give an agent the skill in this folder or zip. One of the same name is replaced."""
        name, content = await asyncio.to_thread(packed, source)
        path = f"/v1/agents/{part(agent_id)}/skills"
        parts = [("file", (name, content, "application/zip"))]
        # The same skill twice is the same skill, so a lost answer is asked for again.
        return await self._transport.send_parts(path, Agent, parts, is_safe=True)

    async def remove_skill(self, agent_id: str, name: str) -> Agent:
        """Take a skill away from an agent."""
        return await self._transport.call("DELETE", f"/v1/agents/{part(agent_id)}/skills/{part(name)}", Agent)

    async def try_unsaved(
        self,
        spec: Mapping[str, Any],
        message: str,
        *,
        agent_id: str | None = None,
        conversation_id: str | None = None,
    ) -> Accepted:
        """Ask an agent that is not saved. Its conversation is in no list. Masked secrets are those of `agent_id`."""
        body = given(agent=dict(spec), message=message, agent_id=agent_id, conversation_id=conversation_id)
        return await self._transport.call("POST", "/v1/agents/try", Accepted, body=body)

    async def mcp_tools(self, server: Mapping[str, Any], *, agent_id: str | None = None) -> McpTools:
        """List the tools of an MCP server, before an agent with it is saved. Masked secrets are those of `agent_id`."""
        body = given(server=dict(server), agent_id=agent_id)
        return await self._transport.call("POST", "/v1/mcp/tools", McpTools, body=body)

    def mcp_connections(self, *, limit: int | None = None) -> AsyncGenerator[McpConnection, None]:
        """The connections of the workspace to MCP servers that ask for authorization. A person makes one on
        the page."""
        return self._pages("/v1/mcp/connections", McpConnection, limit=limit)

    async def delete_mcp_connection(self, connection_id: str) -> None:
        """Forget the tokens of a connection."""
        await self._transport.fetch("DELETE", f"/v1/mcp/connections/{part(connection_id)}")

    def run(self, agent_id: str, prompt: str, *, attachment_ids: Sequence[str] | None = None) -> RunStream:
        """Run an agent once, without a conversation. A run cannot be resumed: leaving the stream stops it."""
        body: JsonObject = {"prompt": prompt}
        if attachment_ids is not None:
            body["attachment_ids"] = list(attachment_ids)
        return RunStream(self._transport, f"/v1/agents/{part(agent_id)}/runs", body)


RunLine = Line
"""A line of a run. Users of the client know its kinds as `RunLog`, `RunDelta`, `RunResult` and `RunError`, beside the
steps and the sources."""
RunLog = SandboxLog
RunDelta = DeltaLine
RunResult = ResultLine
RunError = ErrorLine


class RunStream:
    """The lines of a run, once. A run is stopped when its stream is left or lost; it is not resumed."""

    def __init__(self, transport: Transport, path: str, body: JsonObject) -> None:
        self._transport = transport
        self._path = path
        self._body = body
        self.turn_id: str | None = None
        """Known once the run has begun; `turns.get` shows its result and its files."""
        self.status: Literal["running", "succeeded", "failed"] = "running"

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.turn_id or 'not begun yet'}, {self.status})"

    async def __aiter__(self) -> AsyncGenerator[RunLine, None]:
        retry = self._transport.retry()
        while True:
            try:
                async with self._transport.stream("POST", self._path, body=self._body, headers=NDJSON) as response:
                    self.turn_id = response.headers.get(TURN_HEADER)
                    async for text in lines_of(response):
                        if text.strip():
                            line = _read(text)
                            yield line
                            if isinstance(line, RunResult | RunError):
                                self.status = "succeeded" if isinstance(line, RunResult) else "failed"
                                return
                raise ConnectionLost("The run ended without a last line.", turn_id=self.turn_id)
            except Refusal as refusal:
                await self._transport.after_refusal(refusal.error, refusal.headers, retry)
            except self._transport.transport_errors as exc:
                await self._transport.after(exc, retry, is_safe=False)

    async def result(self) -> str:
        """Run to the end; the text of the result. Raises RunFailed if there is none."""
        message = ""
        async for line in self:
            if isinstance(line, RunError):
                raise RunFailed(line, turn_id=self.turn_id)
            if isinstance(line, RunResult):
                message = line.message
        return message


class RunFailed(WorldError):
    """The run ended without a result; `line` says why."""

    code = "run_failed"

    def __init__(self, line: RunError, *, turn_id: str | None) -> None:
        super().__init__(f"The run failed ({line.code}): {line.message}")
        self.line = line
        self.turn_id = turn_id


def _read(text: bytes) -> RunLine:
    try:
        line, _ = decode_line(text)
    except msgspec.MsgspecError as exc:
        raise Defect(f"The run sent a line that this client cannot read: {exc}. Is one of them older?") from exc
    without_unset(line)
    return line


def packed(source: str | os.PathLike[str]) -> tuple[str, bytes]:
    """The name of a zip, and its bytes. Raises NotFound, InvalidRequest."""
    path = Path(source)
    try:
        if path.is_dir():
            return f"{path.resolve().name}.zip", _zip_of(path)
        if path.is_file() and path.stat().st_size > MOST_BYTES:
            raise _too_large(path)
        return path.name, path.read_bytes()
    except FileNotFoundError as exc:
        raise NotFound(f"There is no {path}.") from exc
    except OSError as exc:
        raise InvalidRequest(f"{path} cannot be read: {exc.strerror or exc}.") from exc


def _zip_of(folder: Path) -> bytes:
    if not (folder / SKILL_FILE).is_file():
        raise InvalidRequest(f"{folder} is no skill: it has no {SKILL_FILE}.")
    buffer, left = io.BytesIO(), MOST_BYTES
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in _files(folder):
            left -= path.stat().st_size
            if left < 0:
                raise _too_large(folder)
            archive.writestr(path.relative_to(folder).as_posix(), path.read_bytes())
    return buffer.getvalue()


def _files(folder: Path) -> Iterator[Path]:
    """The files below the folder, without hidden ones. A link may lead anywhere, so none is followed."""
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        if path.is_symlink():
            raise InvalidRequest(f"{path} is a link. Put the file itself into the skill.")
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _too_large(path: Path) -> InvalidRequest:
    return InvalidRequest(f"{path} has more than {MOST_BYTES:,} bytes, which is too much for a skill.")
