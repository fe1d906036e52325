"""One turn in a sandbox, from its tokens to its last line. Whatever happens, it ends with one line and an empty box."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence

import aiohttp

from turnkeep.clock import system_clock
from turnkeep.engine.endings import settle_failed
from turnkeep.engine.loop import run_turn
from turnkeep.engine.observer import Observer
from turnkeep.engine.recorder import Recorder
from turnkeep.engine.run import Run
from turnkeep.engine.settings import EngineSettings
from turnkeep.errors import CallerError, TurnkeepError
from turnkeep.ids import ConversationId, OrgId, TurnId, WorkspaceId, new_call_id, new_conversation_id, new_turn_id
from turnkeep.model.agents import AgentSpec, Snapshot
from turnkeep.model.events import Step
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Held, Turn
from turnkeep.model.usage import Usage
from turnkeep.providers.ports import ProviderFailed
from turnkeep.runner import briefing
from turnkeep.runner.boxes.ports import Box, Command, Driver
from turnkeep.runner.envelope import Config, Environment, StreamRequest, TurnLimits
from turnkeep.runner.gateway import GatewayProvider
from turnkeep.runner.handing_back import BeforeTheEnd, hand_back
from turnkeep.runner.lines import Lines
from turnkeep.runner.origin import Origin
from turnkeep.runner.progress import Progress
from turnkeep.runner.settings import RunnerSettings
from turnkeep.runner.telling import TellingHub, TellingJournal
from turnkeep.runner.tools import Bench, BoxTools, outcome_of
from turnkeep.runner.workspace import SKILLS, Workspace, skill_files

RESULT_CHARS = 4_000
SETUP = "setup"
SETUP_CHARS = 4_000

_NOBODY = Principal(org_id=OrgId(""), workspace_id=WorkspaceId(""), user_id=None, role="service")
"""Tools in a box act for nobody: who asked is known to the server alone."""

_logger = logging.getLogger("turnkeep.runner")


class SetupFailed(CallerError):
    """The agent's set-up script did not end well. Its output is in the step; repair the script."""

    code = "setup_failed"


class SandboxTurn:
    """One `POST /stream`."""

    def __init__(
        self,
        request: StreamRequest,
        lines: Lines,
        *,
        driver: Driver,
        settings: RunnerSettings,
        session: aiohttp.ClientSession,
    ) -> None:
        self._request = request
        self._lines = lines
        self._driver = driver
        self._settings = settings
        self._origin = Origin(session, request.agent_url)
        self.name = request.agent_url.rstrip("/").rpartition("/")[2][:100]
        """The server's id of the turn, for the log."""

    async def run(self) -> None:
        """Returns when the last line is written and the box is gone. Cancelling stops it at once, without a line."""
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
        environment = await self._origin.environment(self._request.otp_setup)
        config = await self._origin.config(self._request.otp_run)
        if config.limits.turn_seconds is not None:
            ends_at = timer.when()
            asked = asyncio.get_running_loop().time() + config.limits.turn_seconds
            timer.reschedule(asked if ends_at is None else min(ends_at, asked))
        began = time.monotonic()
        box = await self._driver.start(self._settings.limits)
        try:
            self._lines.log("debug", f"Box started in {(time.monotonic() - began) * 1000:.0f} ms")
            workspace = Workspace(box, self._driver.python, self._settings.limits)
            await self._prepare(box, workspace, environment, config)
            await self._think(box, workspace, environment, config)
        finally:
            await _surely_closed(box)

    async def _prepare(self, box: Box, workspace: Workspace, environment: Environment, config: Config) -> None:
        """Skills, files, set-up script."""
        skills = config.agent.skills
        if skills:
            await workspace.put(SKILLS, skill_files({skill.name: skill.files for skill in skills}))
            self._lines.log("info", f"Loaded {len(skills)} skills")
        if config.assets is not None:
            limit = self._settings.limits.disk_bytes
            with contextlib.closing(await self._origin.bag(config.assets, max_bytes=limit)) as bag:
                count = await workspace.unpack(bag)
            self._lines.log("info", f"Unpacked {count} files")
        if environment.setup_script and environment.setup_script.strip():
            await self._set_up(box, environment, environment.setup_script)

    async def _set_up(self, box: Box, environment: Environment, script: str) -> None:
        step = new_call_id()
        self._lines.step(Step(id=step, name=SETUP, status="running"))
        ended = await box.run(
            Command(
                argv=["/bin/bash", "-s"],
                feed=script.encode("utf-8", "replace"),
                environment=environment.variables,
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

    async def _think(self, box: Box, workspace: Workspace, environment: Environment, config: Config) -> None:
        """The loop, on the engine of the server; only what it records goes out as lines."""
        hub = TellingHub(self._lines)
        settings = _engine_settings(self._settings, config.limits)
        tools = BoxTools(
            Bench(
                box=box,
                inside=workspace.inside,
                python=self._driver.python,
                progress=Progress(hub.progress),
                environment=environment.variables,
                step_seconds=_tighter(self._settings.step_seconds, config.limits.step_seconds),
                result_chars=settings.tool_result_chars,
                skills=config.agent.skills,
            )
        )
        turn = _turn(config)

        handing_back = BeforeTheEnd(
            lambda token: hand_back(
                workspace,
                self._origin,
                token,
                self._lines,
                max_files=min(self._settings.assets, config.limits.max_files or self._settings.assets),
                max_file_bytes=config.limits.max_file_bytes,
            ),
            self._request.otp_upload,
        )
        provider = GatewayProvider(config.gateway)
        held = Held(turn_id=turn.id, conversation_id=turn.conversation_id, attempt=1)
        run = Run(
            turn=turn,
            recorder=Recorder(
                store=TellingJournal(turn, self._lines, handing_back.run),
                hub=hub,
                held=held,
                events=(),
                rows=[briefing.question(config.prompt, turn.id, turn.conversation_id, now=system_clock())],
                on_cancel_requested=lambda: None,
            ),
            history=briefing.history(config.conversation, turn.conversation_id),
            provider=provider,
            toolbox=tools.toolbox(_missing(config)),
            principal=_NOBODY,
            lease=_Forever(),
            settings=settings,
            observer=_Observer(),
            clock=system_clock,
            files=None,
        )
        try:
            await run_turn(run)
        except ProviderFailed as exc:
            try:
                await settle_failed(run, exc.code, exc.detail)
            except TurnkeepError as second:  # the files could not be handed back either
                self._lines.log("error", second.detail)
                self._lines.error(exc.code, exc.detail)
        finally:
            await handing_back.stop()
            await provider.close()


class _Forever:
    """The lease of a turn that cannot be taken over."""

    async def ensure(self) -> None:
        pass


class _Observer(Observer):
    def defect(self, turn_id: TurnId | None, error: BaseException) -> None:
        _logger.error("A turn hit a defect", exc_info=error)


def _turn(config: Config) -> Turn:
    """The turn as the engine wants to see it. The server's own ids stay with the server."""
    now = system_clock()
    return Turn(
        id=new_turn_id(),
        conversation_id=ConversationId(config.chat_id or new_conversation_id()),
        workspace_id=_NOBODY.workspace_id,
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
        snapshot=Snapshot(agent=AgentSpec(name="", instructions=briefing.instructions(config)), principal=_NOBODY),
        usage=Usage(),
        month="",
        error=None,
        metadata={},
        created_at=now,
        started_at=now,
        settled_at=None,
    )


def _engine_settings(settings: RunnerSettings, limits: TurnLimits) -> EngineSettings:
    defaults = EngineSettings()
    return EngineSettings(
        replay_turns=1_000,  # the server has chosen which turns to send
        context_chars=limits.context_chars or defaults.context_chars,
        tool_rounds=limits.tool_rounds or settings.tool_rounds,
        tool_result_chars=limits.tool_result_chars or RESULT_CHARS,
        provider_timeout_seconds=limits.provider_timeout_seconds or defaults.provider_timeout_seconds,
        tool_timeout_seconds=settings.step_seconds,
    )


def _tighter(ours: float, theirs: float | None) -> float:
    return ours if theirs is None else min(ours, theirs)


def _missing(config: Config) -> Sequence[str]:
    """Tools that the agent has elsewhere and not here."""
    names = [tool if isinstance(tool, str) else str(tool.get("name")) for tool in config.agent.tools]
    names += [f"MCP server {server.get('name')}" for server in config.agent.mcp_servers]
    return [f"{name} is not available in a sandbox, which has tools of its own." for name in names]


async def _surely_closed(box: Box) -> None:
    """Close the box, however often this is cancelled meanwhile."""
    closing = asyncio.create_task(box.close())
    cancelled = False
    while not closing.done():
        try:
            await asyncio.shield(closing)
        except asyncio.CancelledError:
            cancelled = True
    closing.result()
    if cancelled:
        raise asyncio.CancelledError
