"""One turn in a sandbox, from its tokens to its last line. Whatever happens, it ends with one line and a removed box.

`SandboxTurn` fetches the configuration, starts a box, prepares the workspace and runs the loop. It is the engine's
loop; what the engine records is sent to the server as lines. The instructions for the model are the agent's own, where
the sandbox keeps its files, and which skills there are. Before the last line, the files that the turn made or changed
are written back to the server.

Before a call runs that a person must allow, or that the caller runs, the loop sends a `wait` line and asks the server
for the answer. The box is kept meanwhile, and the time does not count as that of the turn.

Decision: docs/decisions/0902
"""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import aiohttp
from msgspec import Struct, structs

from turnkeep.clock import system_clock
from turnkeep.config import EngineSettings
from turnkeep.engine.assembly import Assembly, past_of
from turnkeep.engine.held_turn import settle_failed
from turnkeep.engine.loop import LocalTurn, run_turn
from turnkeep.engine.observer import Observer
from turnkeep.engine.recorder import Recorder
from turnkeep.engine.services import LoopServices
from turnkeep.engine.waits import next_wait
from turnkeep.errors import CallerError, InvalidRequest, TurnkeepError
from turnkeep.files.names import clean_name
from turnkeep.ids import (
    CallId,
    ConversationId,
    OrgId,
    TurnId,
    WorkspaceId,
    new_call_id,
    new_conversation_id,
    new_message_id,
    new_turn_id,
)
from turnkeep.model.agents import AgentSpec, Snapshot
from turnkeep.model.messages import Message
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.model.waits import UNANSWERED, CallAnswer, WaitingCall, trust_of
from turnkeep.providers.ports import ProviderFailed
from turnkeep.sandbox.boxes.ports import Box, BoxCommand, Driver
from turnkeep.sandbox.boxes.processes import run_to_end
from turnkeep.sandbox.line_stream import LineJournal, LinePublisher, LineStream
from turnkeep.sandbox.server_client import GatewayProvider, ServerClient, ServerTool
from turnkeep.sandbox.settings import RunnerSettings
from turnkeep.sandbox.tools import BoxAccess, BoxTools, StepProgress, asking_tools, outcome_of
from turnkeep.sandbox.workspace import SKILLS, Asset, BoxWorkspace, skill_files
from turnkeep.tools.ports import Toolbox
from turnkeep.tools.registry import FixedToolbox
from turnkeep.trace_context import current_origin
from turnkeep_client.wire.blocks import Text, ToolUse, Usage
from turnkeep_client.wire.events import Step
from turnkeep_client.wire.sandbox import (
    ChatTurn,
    SandboxAnswer,
    SandboxConfig,
    SandboxEnvironment,
    SandboxLimits,
    SandboxRequest,
    SandboxSkill,
    WaitingToolCall,
)

SETUP = "setup"
SETUP_CHARS = 4_000
SUMMARY_CHARS = 400
WRITEBACK = "save files"
_NAMED = 5

_SERVICE = Principal(org_id=OrgId(""), workspace_id=WorkspaceId(""), user_id=None, role="service")
"""Tools in a box act for no user: only the server knows who sent the message."""

_logger = logging.getLogger("turnkeep.sandbox")


class SetupFailed(CallerError):
    """The agent's set-up script failed. Its output is in the step; repair the script."""

    code = "setup_failed"


class PreparedTurn(Struct, frozen=True, kw_only=True):
    """A box that is ready, and everything else that the loop of its turn needs."""

    box: Box
    workspace: BoxWorkspace
    python: Sequence[str]
    variables: Mapping[str, str]
    config: SandboxConfig
    settings: RunnerSettings
    lines: LineStream
    server: ServerClient
    otp_upload: str | None
    session: aiohttp.ClientSession
    timer: asyncio.Timeout
    """The limit of the turn's time."""


class SandboxTurn:
    """One `POST /stream`."""

    def __init__(
        self,
        request: SandboxRequest,
        lines: LineStream,
        *,
        driver: Driver,
        settings: RunnerSettings,
        session: aiohttp.ClientSession,
    ) -> None:
        self._request = request
        self._lines = lines
        self._driver = driver
        self._settings = settings
        self._session = session
        self._server = ServerClient(session, request.agent_url)
        self.name = request.agent_url.rstrip("/").rpartition("/")[2][:100]
        """The server's id of the turn, for the log."""

    async def run(self) -> None:
        """Run to the last line; the box is gone when this returns.

        Cancelling stops the turn at once, without a line.
        """
        timer = asyncio.timeout(self._settings.turn_seconds)
        try:
            async with timer:
                await self._run(timer)
        except TurnkeepError as exc:
            self._lines.error(exc.code, exc.detail)
        except Exception as exc:
            if isinstance(exc, TimeoutError) and timer.expired():
                self._lines.error("turn_timeout", "The turn took longer than it may.")
                return
            _logger.exception("A turn failed")
            self._lines.error("internal", "Something went wrong in the sandbox runner; its log has the details.")

    async def _run(self, timer: asyncio.Timeout) -> None:
        environment = await self._server.environment(self._request.otp_setup)
        config = await self._server.config(self._request.otp_run)
        if config.limits.turn_seconds is not None:
            ends_at = timer.when()
            asked = asyncio.get_running_loop().time() + config.limits.turn_seconds
            timer.reschedule(asked if ends_at is None else min(ends_at, asked))
        began = time.monotonic()
        box = await self._driver.start(self._settings.limits, image=environment.image or None)
        try:
            self._lines.log("debug", f"Box started in {(time.monotonic() - began) * 1000:.0f} ms")
            workspace = BoxWorkspace(box, self._driver.python, self._settings.limits)
            await self._prepare(box, workspace, environment, config)
            await run_loop(self._prepared(box, workspace, environment, config, timer))
        finally:
            await run_to_end(box.close())

    def _prepared(
        self,
        box: Box,
        workspace: BoxWorkspace,
        environment: SandboxEnvironment,
        config: SandboxConfig,
        timer: asyncio.Timeout,
    ) -> PreparedTurn:
        return PreparedTurn(
            box=box,
            workspace=workspace,
            python=self._driver.python,
            variables=_with_trace(environment.variables),
            config=config,
            settings=self._settings,
            lines=self._lines,
            server=self._server,
            otp_upload=self._request.otp_upload,
            session=self._session,
            timer=timer,
        )

    async def _prepare(
        self, box: Box, workspace: BoxWorkspace, environment: SandboxEnvironment, config: SandboxConfig
    ) -> None:
        """Put the skills and files into the workspace, then run the set-up script."""
        skills = config.agent.skills
        if skills:
            await workspace.put(SKILLS, skill_files({skill.name: skill.files for skill in skills}))
            self._lines.log("info", f"Loaded {len(skills)} skills")
        if config.assets is not None:
            limit = self._settings.limits.disk_bytes
            with closing(await self._server.bag(config.assets, max_bytes=limit)) as bag:
                count = await workspace.unpack(bag)
            self._lines.log("info", f"Unpacked {count} files")
        if environment.setup_script and environment.setup_script.strip():
            await self._set_up(box, environment, environment.setup_script)

    async def _set_up(self, box: Box, environment: SandboxEnvironment, script: str) -> None:
        step = new_call_id()
        self._lines.step(Step(id=step, name=SETUP, status="running"))
        ended = await box.run(
            BoxCommand(
                argv=["/bin/bash", "-s"],
                feed=script.encode("utf-8", "replace"),
                environment=_with_trace(environment.variables),
                seconds=self._settings.step_seconds,
            )
        )
        outcome = outcome_of(ended, ended.output.decode("utf-8", "replace"), limit=SETUP_CHARS)
        milliseconds = round(ended.seconds * 1000)
        if outcome.error is None:
            done = Step(id=step, name=SETUP, status="succeeded", duration_ms=milliseconds)
            self._lines.step(done)
            return
        failed = Step(id=step, name=SETUP, status="failed", error=outcome.error, duration_ms=milliseconds)
        self._lines.step(failed)
        raise SetupFailed("The agent's set-up script failed; the step says why.")


def _with_trace(variables: Mapping[str, str]) -> Mapping[str, str]:
    """The variables, and the trace of the turn under the name that OpenTelemetry gives it."""
    traceparent = current_origin().traceparent
    return variables if traceparent is None else {"TRACEPARENT": traceparent, **variables}


# Writeback


async def write_back(
    workspace: BoxWorkspace,
    server: ServerClient,
    otp_upload: str,
    lines: LineStream,
    *,
    max_files: int,
    max_file_bytes: int | None,
) -> None:
    """Collect and upload the files. Files that cannot be kept are named in a failed step: the answer may mention them.

    Raises ServerCallFailed or WorkspaceFailed; then nothing was written back.
    """
    collected = await workspace.collect()
    with ExitStack() as files:
        for asset in collected.assets:
            files.callback(asset.file.close)
        kept, reasons = _choose_assets(collected.assets, max_files=max_files, max_file_bytes=max_file_bytes)
        if collected.skipped:
            reasons.append(f"{_names(collected.skipped)}: not a regular file")
        if kept:
            await server.results(otp_upload, kept)
            lines.log("info", f"Handed {len(kept)} files back")
    if reasons:
        lines.step(Step(id=new_call_id(), name=WRITEBACK, status="failed", error=f"Not kept: {'; '.join(reasons)}."))


class WritebackTask:
    """The writeback of one turn, if there is a token for it.

    The recorder finishes a write that has begun, even when its turn is stopped. A stopped turn must write nothing back,
    so this task can be stopped by itself.
    """

    def __init__(self, work: Callable[[str], Coroutine[Any, Any, None]], token: str | None) -> None:
        self._work = work
        self._token = token
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        if self._token:
            self._task = asyncio.create_task(self._work(self._token), name="writeback")
            await self._task

    async def stop(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})


def _choose_assets(
    assets: tuple[Asset, ...], *, max_files: int, max_file_bytes: int | None
) -> tuple[list[Asset], list[str]]:
    """The files that may be written back, and why others may not. One bad file must not stop the good ones."""
    unnameable = [asset for asset in assets if not _can_be_called(asset.path)]
    assets = tuple(asset for asset in assets if asset not in unnameable)
    large = [asset for asset in assets if max_file_bytes is not None and asset.size > max_file_bytes]
    fitting = [asset for asset in assets if asset not in large]
    reasons = []
    if unnameable:
        reasons.append(f"{_names([asset.path for asset in unnameable])}: no name for a file")
    if large:
        reasons.append(f"{_names([asset.path for asset in large])}: larger than {max_file_bytes:,} bytes")
    if len(fitting) > max_files:
        reasons.append(f"{_names([asset.path for asset in fitting[max_files:]])}: more than {max_files} files")
    return fitting[:max_files], reasons


def _can_be_called(path: str) -> bool:
    """Whether the server accepts a file of this name."""
    try:
        clean_name(path)
    except InvalidRequest:
        return False
    return True


def _names(paths: tuple[str, ...] | list[str]) -> str:
    shown = ", ".join(path[:100] for path in paths[:_NAMED])
    return shown if len(paths) <= _NAMED else f"{shown} and {len(paths) - _NAMED} more"


# The loop


async def run_loop(prepared: PreparedTurn) -> None:
    """Run the loop to its last line, which is written after the files were written back."""
    hub = LinePublisher(prepared.lines)
    writeback = _writeback(prepared)
    provider = GatewayProvider(prepared.config.gateway, prepared.session)
    run = _local_turn(prepared, hub, provider, writeback)
    try:
        await run_turn(run)
    except ProviderFailed as exc:
        try:
            await settle_failed(run, exc.code, exc.detail)
        except TurnkeepError as second:  # the files could not be written back either
            prepared.lines.log("error", second.detail)
            prepared.lines.error(exc.code, exc.detail)
    finally:
        await writeback.stop()
        await provider.close()


def _local_turn(
    prepared: PreparedTurn, hub: LinePublisher, provider: GatewayProvider, writeback: WritebackTask
) -> LocalTurn:
    config, turn = prepared.config, _turn(prepared.config)
    settings = _engine_settings(prepared.settings, config.limits)
    held = Held(turn_id=turn.id, conversation_id=turn.conversation_id, attempt=1)
    trusted = {trust_of(None, identity) for identity in config.trusted}
    recorder = Recorder(
        store=LineJournal(turn, prepared.lines, writeback.run, trusted),
        hub=hub,
        held=held,
        events=(),
        rows=[question(config.prompt, turn.id, turn.conversation_id, now=system_clock())],
        on_cancel_requested=lambda: None,
    )
    assembly = Assembly(
        provider=provider,
        toolbox=_toolbox(prepared, hub, settings),
        past=past_of(history(config.conversation, turn.conversation_id)),
    )
    services = LoopServices(settings=settings, observer=_Observer())
    loop = SandboxLoop(services, turn, recorder, _PermanentLease(), assembly)
    loop.connect(prepared, trusted)
    return loop


class SandboxLoop(LocalTurn):
    """The engine's loop in a sandbox. It differs in one thing: it keeps its box while it waits for answers."""

    def connect(self, prepared: PreparedTurn, trusted: set[str]) -> None:
        """`trusted` gets the tools whose calls need no decision any more."""
        self._prepared = prepared
        self._trusted = trusted

    async def wait_for(self, calls: Sequence[WaitingCall]) -> None:
        """Ask the server for the answers, and go on with them. What is allowed is compared with the call once more."""
        answers = await self._answers(calls)
        answered = [structs.replace(call, answer=answers.get(call.id, UNANSWERED)) for call in calls]
        self._trusted |= {
            trust_of(None, call.identity) for call in answered if call.answer is not None and call.answer.is_remembered
        }
        wait = next_wait(self.turn.wait, answered, now=self._clock(), seconds=0)
        self.turn = structs.replace(self.turn, wait=wait)
        uses = [ToolUse(id=call.id, name=call.name, input=call.args) for call in calls]
        await self.answer_calls(uses, wait=wait)

    async def _answers(self, calls: Sequence[WaitingCall]) -> Mapping[CallId, CallAnswer]:
        if not self._prepared.lines.wait([_waiting_tool_call(call) for call in calls]):
            return dict.fromkeys((call.id for call in calls), _TOO_LONG)
        with _paused(self._prepared.timer):
            found = await self._prepared.server.answers(self._prepared.config.gateway, [call.id for call in calls])
        return {CallId(each.call_id): _call_answer(each) for each in found}


_TOO_LONG = CallAnswer(verdict="deny", by="the sandbox", reason="The arguments are too long to be shown to a person.")


def _waiting_tool_call(call: WaitingCall) -> WaitingToolCall:
    return WaitingToolCall(
        id=call.id,
        name=call.name,
        args=call.args,
        reason=call.reason,
        input_schema=call.schema,
        identity=call.identity,
    )


def _call_answer(answer: SandboxAnswer) -> CallAnswer:
    fields = structs.asdict(answer)
    del fields["call_id"]
    return CallAnswer(**fields)


@contextmanager
def _paused(timer: asyncio.Timeout) -> Iterator[None]:
    """The time inside does not count."""
    now, ends_at = asyncio.get_running_loop().time, timer.when()
    began = now()
    timer.reschedule(None)
    try:
        yield
    finally:
        if ends_at is not None:
            timer.reschedule(ends_at + now() - began)


def _toolbox(prepared: PreparedTurn, hub: LinePublisher, settings: EngineSettings) -> Toolbox:
    """The tools of the box that the key allows, then those that the server calls. If two have the same name, the first
    is used."""
    config = prepared.config
    access = BoxAccess(
        box=prepared.box,
        script=prepared.workspace.script,
        python=prepared.python,
        progress=StepProgress(hub.progress),
        environment=prepared.variables,
        step_seconds=_smaller(prepared.settings.step_seconds, config.limits.step_seconds),
        result_chars=settings.tool_result_chars,
        skills=config.agent.skills,
    )
    key = structs.replace(_SERVICE, allowed_tools=config.agent.allowed_tools)
    own = [each for each in BoxTools(access).all() if key.may_use(each.spec.name)]
    tools = {each.spec.name: each for each in asking_tools(own, set(config.asks), config.agent.skills)}
    notes = list(config.gateway.notes)
    if config.gateway.tools is None:
        notes += _unavailable_tools(config)
    for offered in config.gateway.tools or ():
        if offered.name in tools:
            notes.append(f"There are two tools called {offered.name}; that of the box is used.")
        else:
            tools[offered.name] = ServerTool(offered, config.gateway, prepared.session)
    return FixedToolbox(tools, notes)


def _writeback(prepared: PreparedTurn) -> WritebackTask:
    settings, limits = prepared.settings, prepared.config.limits
    return WritebackTask(
        lambda token: write_back(
            prepared.workspace,
            prepared.server,
            token,
            prepared.lines,
            max_files=min(settings.assets, limits.max_files or settings.assets),
            max_file_bytes=limits.max_file_bytes,
        ),
        prepared.otp_upload,
    )


class _PermanentLease:
    """The lease of a turn that no other worker can take over."""

    async def begin_call(self) -> None:
        pass

    async def ensure(self) -> None:
        pass


class _Observer(Observer):
    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        _logger.error("A turn hit a defect", exc_info=error)


def _turn(config: SandboxConfig) -> Turn:
    """The turn as the engine needs it, with ids of its own: the server keeps the real ones."""
    now = system_clock()
    return Turn(
        id=new_turn_id(),
        conversation_id=ConversationId(config.chat_id or new_conversation_id()),
        workspace_id=_SERVICE.workspace_id,
        user_id=None,
        parent_turn_id=None,
        ordinal=1,
        active=True,
        status="running",
        attempt=1,
        failures=0,
        last_seq=0,
        cancel_requested_at=None,
        background=True,
        source="api",
        model=f"{GatewayProvider.name}/{config.agent.model}",
        snapshot=Snapshot(agent=AgentSpec(name="", instructions=instructions(config)), principal=_SERVICE),
        usage=Usage(),
        month="",
        error=None,
        metadata={},
        created_at=now,
        started_at=now,
        settled_at=None,
    )


def _engine_settings(settings: RunnerSettings, limits: SandboxLimits) -> EngineSettings:
    defaults = EngineSettings()
    return EngineSettings(
        context_chars=limits.context_chars or defaults.context_chars,
        tool_rounds=limits.tool_rounds or settings.tool_rounds,
        tool_result_chars=limits.tool_result_chars or defaults.tool_result_chars,
        provider_timeout_seconds=limits.provider_timeout_seconds or defaults.provider_timeout_seconds,
        tool_timeout_seconds=settings.step_seconds,
    )


def _smaller(ours: float, theirs: float | None) -> float:
    return ours if theirs is None else min(ours, theirs)


def _unavailable_tools(config: SandboxConfig) -> Sequence[str]:
    """Notes about tools of the agent that cannot be used here, because its server calls none for sandboxes."""
    names = [tool if isinstance(tool, str) else str(tool.get("name")) for tool in config.agent.tools]
    names += [f"MCP server {server.get('name')}" for server in config.agent.mcp_servers]
    return [f"{name} is not available: the server calls no tools for sandboxes." for name in names]


_SANDBOX = """\
You work in a sandbox: a Linux box with a shell and Python, without a network, that is erased after your answer. Your \
folder is /workspace. Files that the user attached are in /workspace/assets. Whatever you leave in /workspace/assets, \
new or changed, is given to the user; nothing else is kept."""

_SKILLS = """\
You have skills, each a folder below /workspace/skills with instructions in SKILL.md and programs that run_recipe \
runs. Read a skill's SKILL.md before you use it."""

_FRONT_MATTER = re.compile(r"\A---\s*\n(.*?)\n---\s*\n", re.DOTALL)
_DESCRIPTION = re.compile(r"^description:\s*(.+?)\s*$", re.MULTILINE)


def instructions(config: SandboxConfig) -> str:
    """The agent's instructions, then a description of the sandbox, then the list of skills."""
    parts = [config.agent.instructions.strip(), _SANDBOX]
    if config.agent.skills:
        parts += [_SKILLS, "\n".join(f"- {skill.name}: {skill_summary(skill)}" for skill in config.agent.skills)]
    return "\n\n".join(part for part in parts if part)


def skill_summary(skill: SandboxSkill) -> str:
    """The description from the front matter of SKILL.md, or its first line that is not a heading."""
    text = skill.files.get("SKILL.md", "")
    front = _FRONT_MATTER.match(text)
    if front and (found := _DESCRIPTION.search(front[1])):
        return found[1].strip("\"'")[:SUMMARY_CHARS]
    body = text[front.end() :] if front else text
    lines = [line.strip() for line in body.splitlines() if line.strip()]
    words = next((line for line in lines if not line.startswith("#")), lines[0].lstrip("# ") if lines else "")
    return words[:SUMMARY_CHARS] or "no description"


def history(turns: Sequence[ChatTurn], conversation_id: ConversationId) -> list[Message]:
    """The conversation so far as rows.

    A user's message begins a turn; the assistant's messages belong to the open one.
    """
    rows: list[Message] = []
    turn_id, sequence = new_turn_id(), 0
    for entry in turns:
        if entry.role == "user" and rows:
            turn_id, sequence = new_turn_id(), 0
        rows.append(
            Message(
                id=new_message_id(),
                turn_id=turn_id,
                conversation_id=conversation_id,
                turn_sequence=sequence,
                role=entry.role,
                blocks=(Text(text=entry.content),),
                created_at=entry.ts,
            )
        )
        sequence += 1
    return rows


def question(prompt: str, turn_id: TurnId, conversation_id: ConversationId, *, now: int) -> Message:
    return Message(
        id=new_message_id(),
        turn_id=turn_id,
        conversation_id=conversation_id,
        turn_sequence=0,
        role="user",
        blocks=(Text(text=prompt),),
        created_at=now,
    )
