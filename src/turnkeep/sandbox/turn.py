"""One turn in a sandbox, from its tokens to its last line.

Whatever happens, it ends with one line and a removed box.
"""

import asyncio
import contextlib
import logging
import time

import aiohttp

from turnkeep.errors import CallerError, TurnkeepError
from turnkeep.ids import new_call_id
from turnkeep.sandbox.boxes.ports import Box, Command, Driver
from turnkeep.sandbox.line_stream import LineStream
from turnkeep.sandbox.loop import PreparedTurn, run_loop
from turnkeep.sandbox.server_client import ServerClient
from turnkeep.sandbox.settings import RunnerSettings
from turnkeep.sandbox.tools import outcome_of
from turnkeep.sandbox.workspace import SKILLS, Workspace, skill_files
from turnkeep_client.wire.events import Step
from turnkeep_client.wire.sandbox import SandboxConfig, SandboxEnvironment, SandboxRequest

SETUP = "setup"
SETUP_CHARS = 4_000

_logger = logging.getLogger("turnkeep.sandbox")


class SetupFailed(CallerError):
    """The agent's set-up script failed. Its output is in the step; repair the script."""

    code = "setup_failed"


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
        box = await self._driver.start(self._settings.limits)
        try:
            self._lines.log("debug", f"Box started in {(time.monotonic() - began) * 1000:.0f} ms")
            workspace = Workspace(box, self._driver.python, self._settings.limits)
            await self._prepare(box, workspace, environment, config)
            await run_loop(self._prepared(box, workspace, environment, config))
        finally:
            await _surely_closed(box)

    def _prepared(
        self, box: Box, workspace: Workspace, environment: SandboxEnvironment, config: SandboxConfig
    ) -> PreparedTurn:
        return PreparedTurn(
            box=box,
            workspace=workspace,
            python=self._driver.python,
            variables=environment.variables,
            config=config,
            settings=self._settings,
            lines=self._lines,
            server=self._server,
            otp_upload=self._request.otp_upload,
            session=self._session,
        )

    async def _prepare(
        self, box: Box, workspace: Workspace, environment: SandboxEnvironment, config: SandboxConfig
    ) -> None:
        """Put the skills and files into the workspace, then run the set-up script."""
        skills = config.agent.skills
        if skills:
            await workspace.put(SKILLS, skill_files({skill.name: skill.files for skill in skills}))
            self._lines.log("info", f"Loaded {len(skills)} skills")
        if config.assets is not None:
            limit = self._settings.limits.disk_bytes
            with contextlib.closing(await self._server.bag(config.assets, max_bytes=limit)) as bag:
                count = await workspace.unpack(bag)
            self._lines.log("info", f"Unpacked {count} files")
        if environment.setup_script and environment.setup_script.strip():
            await self._set_up(box, environment, environment.setup_script)

    async def _set_up(self, box: Box, environment: SandboxEnvironment, script: str) -> None:
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


async def _surely_closed(box: Box) -> None:
    """Close the box, even if this task is cancelled meanwhile."""
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
