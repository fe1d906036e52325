"""`turnkeep serve`: read the settings, listen, run one worker or several, and say where."""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from typing import Annotated, Any

import typer

from turnkeep.cli.flags import with_flags
from turnkeep.cli.operating import forget_server, remember_server
from turnkeep.cli.printing import remark, say
from turnkeep.config import VARIABLES, Settings, mask_url, read_settings
from turnkeep.engine.sandboxes import SandboxAccess
from turnkeep.errors import Defect, InvalidRequest

QUICK_SECONDS = 5.0
"""A worker that dies younger than this did not start properly."""
QUICK_DEATHS = 3


def _serve(**options: Any) -> None:
    """Run the server. Every option can also be an environment variable (TURNKEEP_…); a flag wins.

    **Examples**

    - `turnkeep serve`

    - `turnkeep serve --port 9000 --model anthropic/claude-sonnet-4-5`

    - `turnkeep serve --workers 4 --database-url postgresql://localhost/turnkeep --redis-url redis://localhost`
    """
    workers: int = options.pop("workers")
    settings = read_settings(os.environ, options)
    if workers > 1 and settings.is_sqlite:
        raise InvalidRequest(
            f"--workers {workers} needs PostgreSQL: one process owns a SQLite file. Set TURNKEEP_DATABASE_URL."
        )
    from turnkeep.api.app import bind

    missing = _check_model(settings)
    with bind(settings) as listener, _sandbox(settings, listener) as (access, note):

        def announce() -> None:
            _announce(settings, listener, sandbox=note, missing=missing)

        if workers == 1:
            _run(settings, listener, announce, access)
        else:
            Supervisor(settings, listener, workers, announce=announce, sandbox=access).run()


def _check_model(settings: Settings) -> str | None:
    """What the default model still needs, if anything. Raises InvalidRequest for a name that can never be one."""
    from turnkeep.providers.registry import NotSetUp
    from turnkeep.runtime import default_providers

    try:
        default_providers(settings, os.environ).named(settings.model)
    except NotSetUp as exc:
        return exc.detail
    except InvalidRequest as exc:
        raise InvalidRequest(f"TURNKEEP_MODEL (--model) cannot be {settings.model!r}. {exc.detail}") from exc
    return None


@contextlib.contextmanager
def _sandbox(settings: Settings, listener: socket.socket) -> Iterator[tuple[SandboxAccess | None, str]]:
    """Where turns in sandboxes are sent, in words too: the operator's runner, or one that lives beside this server."""
    from turnkeep.cli.bundled_runner import BundledRunner, start_runner

    if settings.runner_url is not None:
        address = settings.address(listener.getsockname()[1])
        yield SandboxAccess(url=settings.runner_url, server_url=address), mask_url(settings.runner_url)
        return
    runner = start_runner(settings, listener, os.environ)
    if not isinstance(runner, BundledRunner):
        yield None, runner
        return
    try:
        yield runner.access, runner.access.url
    finally:
        runner.close()


Workers = Annotated[
    int, typer.Option("--workers", min=1, max=256, help="Processes that share the address (PostgreSQL only).")
]

serve = with_flags(_serve, VARIABLES, workers=(1, Workers))


def _run(
    settings: Settings, listener: socket.socket, on_ready: Callable[[], None], sandbox: SandboxAccess | None
) -> None:
    """One worker, in this process, until it is told to stop."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_work(settings, listener, on_ready, sandbox))


async def _work(
    settings: Settings, listener: socket.socket, on_ready: Callable[[], None], sandbox: SandboxAccess | None
) -> None:
    from turnkeep.api.app import Server, create_app
    from turnkeep.api.identity.service_keys import make_folder
    from turnkeep.api.telemetry.logs import configure_logging
    from turnkeep.api.telemetry.metrics import Metrics
    from turnkeep.api.telemetry.observer import EngineObserver
    from turnkeep.api.telemetry.tracing import open_tracing
    from turnkeep.runtime import open_runtime

    make_folder(settings.data_dir)
    configure_logging(settings.log_level, secrets=[settings.bootstrap_key or "", *settings.secret_keys])
    metrics = Metrics()
    tracing = open_tracing(os.environ)
    try:
        async with open_runtime(settings, observer=EngineObserver(metrics, tracing), sandbox=sandbox) as runtime:
            app = create_app(runtime, metrics=metrics, tracing=tracing)
            await Server(app, runtime, on_ready=on_ready).serve([listener])
    finally:
        forget_server(settings)
        if tracing is not None:
            tracing.close()


def _announce(settings: Settings, listener: socket.socket, *, sandbox: str, missing: str | None) -> None:
    """Say where the server is. The link signs browsers in, until the server is started again."""
    from turnkeep.api.identity.service_keys import LOCAL_KEY, SigninLinks

    port = listener.getsockname()[1]
    address = settings.address(port)
    links = SigninLinks(settings.data_dir)
    links.forget_all()
    remember_server(settings, port)
    say(f"Turnkeep is running at {address}")
    say(f"  sign in    {address}/signin?token={links.make()}")
    say(f"  API key    in {settings.data_dir / LOCAL_KEY}")
    say(f"  database   {mask_url(settings.database_url)}")
    say(f"  sandbox    {sandbox}")
    if missing is not None:
        say(f"  model      {missing}")
    say("Stop it with Ctrl-C.", flush=True)


class Supervisor:
    """Keeps so many workers alive, each a process of its own on one shared socket."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        workers: int,
        *,
        announce: Callable[[], None],
        sandbox: SandboxAccess | None = None,
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._announce = announce
        self._sandbox = sandbox
        self._count = workers
        self._context = multiprocessing.get_context("spawn")
        self._ready = self._context.Event()
        self._processes: list[SpawnProcess] = []
        self._began: dict[int, float] = {}
        self._quick_deaths = 0
        self._is_stopping = False

    def run(self) -> None:
        """Until a signal comes, or until workers die as soon as they are started."""
        self._prepare()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._processes = [self._start() for _ in range(self._count)]
        is_announced = False
        while any(process.is_alive() for process in self._processes):
            if not is_announced and self._ready.is_set():
                self._announce()
                is_announced = True
            time.sleep(0.05)
            if not self._is_stopping:
                self._replace_dead()
        forget_server(self._settings)
        if self._quick_deaths >= QUICK_DEATHS:
            raise Defect("The workers ended as soon as they were started. The lines above say why.")

    def _prepare(self) -> None:
        """Migrate, and make the secrets, once and before any worker looks for them."""
        from turnkeep.api.identity.service_keys import local_key, signing_secrets
        from turnkeep.runtime import home_org, open_store

        async def prepare() -> None:
            store = await open_store(self._settings)
            try:
                await home_org(store)
            finally:
                await store.close()

        asyncio.run(prepare())
        local_key(self._settings.data_dir)
        signing_secrets(self._settings)

    def _start(self) -> SpawnProcess:
        process = self._context.Process(
            target=run_worker,
            args=(self._settings, self._listener, self._ready, self._sandbox),
            name="turnkeep worker",
        )
        process.start()
        assert process.pid is not None
        self._began[process.pid] = time.monotonic()
        return process

    def _replace_dead(self) -> None:
        for place, process in enumerate(self._processes):
            if process.is_alive():
                continue
            assert process.pid is not None
            age = time.monotonic() - self._began.pop(process.pid)
            self._quick_deaths = self._quick_deaths + 1 if age < QUICK_SECONDS else 0
            if self._quick_deaths >= QUICK_DEATHS:
                self._stop(signal.SIGTERM, None)
                return
            self._processes[place] = self._start()

    def _stop(self, number: int, frame: object) -> None:
        self._is_stopping = True
        for process in self._processes:
            if process.is_alive() and process.pid is not None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process.pid, number)


def run_worker(settings: Settings, listener: socket.socket, ready: Event, sandbox: SandboxAccess | None = None) -> None:
    """What a worker process does."""
    from turnkeep.errors import TurnkeepError

    threading.Thread(target=_leave_with_supervisor, name="supervisor watch", daemon=True).start()
    try:
        _run(settings, listener, ready.set, sandbox)
    except TurnkeepError as exc:
        remark(f"turnkeep: {exc.detail}")
        sys.exit(2)


def _leave_with_supervisor() -> None:
    """A supervisor that was killed cannot stop its workers: they hand their turns over and go by themselves."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)
