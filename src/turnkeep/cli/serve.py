"""`turnkeep serve`: read the settings, listen, run one worker or several, and print the address.

With `--workers` above 1 a supervisor starts the workers as processes of their own, which share one socket. Beside them
runs a sandbox runner, as a child process, unless the operator names another runner or turns sandboxes off.
"""

import asyncio
import contextlib
import gc
import logging
import multiprocessing
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from multiprocessing.synchronize import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer
from msgspec import structs

from turnkeep.cli.database import forget_server, remember_server
from turnkeep.cli.output import remark, say
from turnkeep.cli.setting_options import ConfigOption, with_flags
from turnkeep.config import (
    CONFIG_VARIABLE,
    SECRET_CHARS,
    VARIABLES,
    ConfigFile,
    Settings,
    exposed_secrets,
    find_config_file,
    mask_url,
    read_settings,
)
from turnkeep.engine.sandbox.runner_client import RunnerAccess
from turnkeep.errors import Defect, InvalidRequest, SandboxUnavailable, TurnkeepError
from turnkeep.http_server.sockets import http_address, listen

if TYPE_CHECKING:
    from turnkeep.api.telemetry.admin_port import MetricSource, OwnSource, Total

QUICK_SECONDS = 5.0
"""A worker or runner that ends sooner than this did not start properly."""
QUICK_DEATHS = 3
RUNNER_CLOSE_SECONDS = 5.0
RUNNER_START_SECONDS = 15.0
"""The server answers requests before its runner does. A turn that needs the runner waits this long for it."""
COLLECT_AFTER = (10_000, 20, 20)
"""Thresholds of the garbage collector."""
RESTART_PAUSES = (0.2, 1.0, 5.0, 30.0)
"""Seconds before the runner is started again: longer after each quick end."""
_RUNNER_VARIABLES = (
    "PATH",
    "HOME",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "XDG_DATA_HOME",
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "DOCKER_HOST",
    CONFIG_VARIABLE,
)
_RUNNER_PREFIX = "TURNKEEP_SANDBOX_"
_SERVER_VARIABLES = ("TURNKEEP_SANDBOX_URL", "TURNKEEP_SANDBOX_SECRET", "TURNKEEP_SANDBOX_IMAGES")
_MEMORY_GUARD = "TURNKEEP_SANDBOX_MEMORY_GUARD"
ONLY_WATCHED = " (the kernel does not limit the memory of boxes: docs/howto/run-a-sandbox.md#cgroups)"
IN_THE_OPEN = (
    "other machines reach {host}, and keys and messages travel as plain text. Put a proxy with TLS in front, and set "
    "TURNKEEP_PUBLIC_URL to its https address (docs/howto/deploy.md)"
)
GUESSABLE_KEY = (
    "other machines reach {host}, and can guess TURNKEEP_BOOTSTRAP_KEY. "
    f"Give it at least {SECRET_CHARS} random characters"
)
_logger = logging.getLogger("turnkeep.serve")


def _serve(**options: Any) -> None:
    """Run the server. Every setting can also be an environment variable (TURNKEEP_…), or a line in turnkeep.toml.

    A flag wins over the environment, the environment over the file, and the file over the default.

    **Examples**

    - `turnkeep serve`

    - `turnkeep serve --port 9000 --model anthropic/claude-sonnet-4-5`

    - `turnkeep serve --workers 4 --database-url postgresql://localhost/turnkeep --redis-url redis://localhost`
    """
    workers: int = options.pop("workers")
    file = find_config_file(os.environ, options.pop("config"))
    settings = read_settings(os.environ, options, file)
    if workers > 1 and settings.is_sqlite:
        raise InvalidRequest(
            f"--workers {workers} needs PostgreSQL: one process owns a SQLite file. Set TURNKEEP_DATABASE_URL."
        )
    from turnkeep.api.app import bind

    missing = _check_model(settings)
    with (
        bind(settings) as listener,
        _admin_port(settings) as (total, admin),
        _sandbox(settings, listener, file) as (access, note),
    ):

        def announce() -> None:
            _announce(settings, listener, sandbox=note, missing=missing, file=file, admin=admin)

        if workers == 1:
            _run(settings, listener, announce, access, report=total.add)
        else:
            Supervisor(settings, listener, workers, announce=announce, sandbox=access, total=total).run()


Workers = Annotated[
    int, typer.Option("--workers", min=1, max=256, help="Processes that share the address (PostgreSQL only).")
]
serve = with_flags(_serve, VARIABLES, workers=(1, Workers), config=(None, ConfigOption))


def _check_model(settings: Settings) -> str | None:
    """What the default model still needs, if anything. Raises InvalidRequest for a name that no model can have."""
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
def _admin_port(settings: Settings) -> "Iterator[tuple[Total, str | None]]":
    """The sum of the metrics of all workers, and the address at which it is served, if the operator wants that."""
    from turnkeep.api.telemetry.admin_port import AdminPort, Total

    total = Total()
    if settings.admin_port is None:
        yield total, None
        return
    with listen(settings.admin_host, settings.admin_port, variable="TURNKEEP_ADMIN_HOST", backlog=16) as listener:
        port = AdminPort(listener, total)
        port.start()
        try:
            yield total, http_address(*listener.getsockname()[:2])
        finally:
            port.close()


@contextlib.contextmanager
def _sandbox(
    settings: Settings, listener: socket.socket, file: ConfigFile | None
) -> Iterator[tuple[RunnerAccess | None, str]]:
    """The runner for turns in sandboxes (the operator's own, or a child process), and a text about it."""

    if settings.runner_url is not None:
        address = settings.address(listener.getsockname()[1])
        access = RunnerAccess(url=settings.runner_url, server_url=address, secret=settings.sandbox_secret or "")
        yield access, mask_url(settings.runner_url)
        return
    runner = start_runner(settings, listener, _with_file(os.environ, file))
    if not isinstance(runner, RunnerProcess):
        yield None, runner
        return
    try:
        yield runner.access, runner.access.url + ("" if runner.has_cgroups else ONLY_WATCHED)
    finally:
        runner.close()


def _with_file(environ: Mapping[str, str], file: ConfigFile | None) -> Mapping[str, str]:
    """The environment, with the settings of the file that it does not override."""
    if file is None:
        return environ
    set_here = {name: value for name, value in environ.items() if value.strip()}
    return {**file.values, **set_here, CONFIG_VARIABLE: str(file.path.resolve())}


def _announce(
    settings: Settings,
    listener: socket.socket,
    *,
    sandbox: str,
    missing: str | None,
    file: ConfigFile | None,
    admin: str | None = None,
) -> None:
    """Print where the server is. The link signs browsers in until the server is started again."""
    from turnkeep.api.http import bundled_page
    from turnkeep.api.identity.service_keys import LOCAL_KEY, SigninLinks

    port = listener.getsockname()[1]
    address = settings.address(port)
    links = SigninLinks.of(settings)
    links.forget_all()
    remember_server(settings, port)
    say(f"Turnkeep is running at {address}")
    say(f"  sign in    {address}/signin?token={links.make()}")
    say(f"  API key    in {settings.data_dir / LOCAL_KEY}")
    say(f"  database   {mask_url(settings.database_url)}")
    say(f"  sandbox    {sandbox}")
    if not bundled_page.is_installed():
        say(f"  page       {bundled_page.MISSING}")
    if admin is not None:
        say(f"  metrics    {admin}/metrics")
    if missing is not None:
        say(f"  model      {missing}")
    if is_in_the_open(settings):
        say(f"  warning    {IN_THE_OPEN.format(host=settings.host)}")
    if has_guessable_key(settings):
        say(f"  warning    {GUESSABLE_KEY.format(host=settings.host)}")
    if file is not None and (exposed := exposed_secrets(file)):
        say(f"  warning    Others can read {', '.join(exposed)} in {file.path}. Run `chmod 600 {file.path}`.")
    say("Stop it with Ctrl-C.", flush=True)


def is_in_the_open(settings: Settings) -> bool:
    """Whether other machines reach this server, and nothing says that TLS is in front of it."""
    return not settings.is_local and not (settings.public_url or "").startswith("https:")


def has_guessable_key(settings: Settings) -> bool:
    """Whether other machines reach this server, and may guess the operator's key. It is not refused: test set-ups in
    containers have such keys."""
    return not settings.is_local and 0 < len(settings.bootstrap_key or "") < SECRET_CHARS


def _run(
    settings: Settings,
    listener: socket.socket,
    on_ready: Callable[[], None],
    sandbox: RunnerAccess | None,
    *,
    report: "Callable[[OwnSource], None]",
    is_shared: bool = False,
) -> None:
    """Run one worker in this process until a signal stops it. `report` is given its metrics. `is_shared`: other workers
    use the same socket."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(_work(settings, listener, on_ready, sandbox, report=report, is_shared=is_shared))


async def _work(
    settings: Settings,
    listener: socket.socket,
    on_ready: Callable[[], None],
    sandbox: RunnerAccess | None,
    *,
    report: "Callable[[OwnSource], None]",
    is_shared: bool,
) -> None:
    from turnkeep.api.app import Server, create_app
    from turnkeep.api.identity.service_keys import make_folder
    from turnkeep.api.telemetry.admin_port import OwnSource
    from turnkeep.api.telemetry.logs import configure_logging
    from turnkeep.api.telemetry.metrics import Metrics, Probe, observer_of
    from turnkeep.api.telemetry.tracing import open_tracing
    from turnkeep.runtime import open_runtime

    make_folder(settings.data_dir)
    configure_logging(settings.log_level, secrets=[settings.bootstrap_key or "", *settings.secret_keys])
    metrics = Metrics()
    tracing = open_tracing(os.environ, has_content=settings.trace_content)
    try:
        async with (
            open_runtime(settings, observer=observer_of(metrics, tracing), sandbox=sandbox) as runtime,
            _in_background(Probe(runtime, metrics).run()),
        ):
            app = create_app(runtime, metrics=metrics, tracing=tracing)
            report(OwnSource(metrics))
            # Modules and routes live as long as the process. A full collection that walks them stops all streams for
            # some 100 ms.
            gc.freeze()
            # A turn makes hundreds of objects and leaves hardly a cycle. With the defaults of Python, a tenth of the
            # time of a turn went to looking for cycles.
            gc.set_threshold(*COLLECT_AFTER)
            server = Server(app, runtime, on_ready=on_ready)
            server.shares_sockets = is_shared
            await server.serve([listener])
    finally:
        forget_server(settings)
        if tracing is not None:
            tracing.close()


@contextlib.asynccontextmanager
async def _in_background(work: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run this until the end of the block."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Supervisor:
    """Keeps a number of workers alive, each a process of its own, on one shared socket."""

    def __init__(
        self,
        settings: Settings,
        listener: socket.socket,
        workers: int,
        *,
        announce: Callable[[], None],
        total: "Total",
        sandbox: RunnerAccess | None = None,
    ) -> None:
        """`total` is given the metrics of each worker."""
        self._total = total
        self._sources: dict[int, MetricSource] = {}
        """By the process id of the worker."""
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
        """Return after a signal. Raises Defect when workers end as soon as they are started."""
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
        """Migrate the database and create the secrets once, before any worker needs them."""
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
        from turnkeep.api.telemetry.admin_port import WorkerSource

        ours, theirs = self._context.Pipe()
        process = self._context.Process(
            target=run_worker,
            args=(self._settings, self._listener, self._ready, theirs, self._sandbox),
            name="turnkeep worker",
        )
        process.start()
        theirs.close()
        assert process.pid is not None
        self._began[process.pid] = time.monotonic()
        self._sources[process.pid] = source = WorkerSource(ours)
        self._total.add(source)
        return process

    def _replace_dead(self) -> None:
        for place, process in enumerate(self._processes):
            if process.is_alive():
                continue
            assert process.pid is not None
            age = time.monotonic() - self._began.pop(process.pid)
            self._total.retire(self._sources.pop(process.pid))
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


def run_worker(
    settings: Settings,
    listener: socket.socket,
    ready: Event,
    pipe: "Connection[Any, Any]",
    sandbox: RunnerAccess | None = None,
) -> None:
    """The entry point of a worker process. The supervisor asks for its metrics over the pipe."""
    from turnkeep.errors import TurnkeepError

    def report(source: "OwnSource") -> None:
        threading.Thread(target=source.answer_for_ever, args=(pipe,), name="metrics", daemon=True).start()

    threading.Thread(target=_leave_with_supervisor, name="supervisor watch", daemon=True).start()
    try:
        _run(settings, listener, ready.set, sandbox, report=report, is_shared=True)
    except TurnkeepError as exc:
        remark(f"turnkeep: {exc.detail}")
        sys.exit(2)


def _leave_with_supervisor() -> None:
    """End this worker when its supervisor is gone: a killed supervisor cannot stop its workers."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None
    supervisor.join()
    os.kill(os.getpid(), signal.SIGTERM)


class RunnerProcess:
    """The sandbox runner as a child process. It is started at once, and started again when it ends; `close` ends it.

    Its standard input is a pipe that only the server holds. When the server ends, for whatever reason, the pipe closes,
    and the runner kills its boxes and exits. It gets no provider key: it reaches models through the server.
    """

    def __init__(self, access: RunnerAccess, *, environ: Mapping[str, str], has_cgroups: bool) -> None:
        """`environ` is already the runner's own. `has_cgroups`: the kernel limits the memory of its boxes."""
        self.access = access
        self.has_cgroups = has_cgroups
        self._environ = {**environ, "TURNKEEP_SANDBOX_SECRET": access.secret}
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closing = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="sandbox runner", daemon=True)
        self._keeper.start()

    def close(self) -> None:
        """End the runner and all of its boxes; kill it if it does not end in time."""
        self._is_closing.set()
        process = self._process
        if process is not None:
            _end_runner(process)
        self._keeper.join(RUNNER_CLOSE_SECONDS)

    def _keep(self) -> None:
        quick_ends = 0
        while not self._is_closing.is_set():
            began = time.monotonic()
            self._process = process = self._start()
            if self._is_closing.is_set():
                _end_runner(process)
            code = process.wait()
            if self._is_closing.is_set():
                return
            quick_ends = quick_ends + 1 if time.monotonic() - began < QUICK_SECONDS else 0
            _logger.warning("The sandbox runner ended with code %d and is started again", code)
            self._is_closing.wait(RESTART_PAUSES[min(quick_ends, len(RESTART_PAUSES) - 1)])

    def _start(self) -> "subprocess.Popen[bytes]":
        port = self.access.url.rpartition(":")[2]
        return subprocess.Popen(
            [
                *(sys.executable, "-c", "from turnkeep.cli.main import main; main()", "sandbox", "--until-eof"),
                *("--host", "127.0.0.1", "--port", port, "--server", self.access.server_url),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env=self._environ,
            start_new_session=True,  # so that Ctrl-C reaches only the server, which ends the runner after its turns
        )


def start_runner(settings: Settings, listener: socket.socket, environ: Mapping[str, str]) -> RunnerProcess | str:
    """The runner; or a text for the operator that says why there is none."""
    if settings.sandbox_url == "off":
        return "off (TURNKEEP_SANDBOX_URL)"
    own = runner_environment(environ)
    if not settings.is_local and own.get(_MEMORY_GUARD, "auto") == "auto":
        own[_MEMORY_GUARD] = "cgroup"
    try:
        has_cgroups = asyncio.run(try_sandbox(own))
    except TurnkeepError as exc:
        return f"none: {exc.detail}"
    access = RunnerAccess(
        url=f"http://127.0.0.1:{_free_port()}",
        server_url=local_address(listener),
        secret=secrets.token_hex(32),
        patience_seconds=RUNNER_START_SECONDS,
    )
    return RunnerProcess(access, environ=own, has_cgroups=has_cgroups)


def local_address(listener: socket.socket) -> str:
    """The address at which a program on this machine reaches the server, whatever its public address is."""
    return http_address(*listener.getsockname()[:2])


def runner_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that the runner needs to start, and its own settings. No secret of the server is among them."""
    return {
        name: value
        for name, value in environ.items()
        if name in _RUNNER_VARIABLES or (name.startswith(_RUNNER_PREFIX) and name not in _SERVER_VARIABLES)
    }


async def try_sandbox(environ: Mapping[str, str]) -> bool:
    """Start a box once, and say whether the kernel will limit the memory of boxes.

    Raises SandboxUnavailable with advice if no box can be started.
    """
    try:
        from turnkeep.sandbox.boxes.limits import Cgroups, scope_command
        from turnkeep.sandbox.server import make_driver
        from turnkeep.sandbox.settings import read_runner_settings
    except ImportError as exc:
        raise SandboxUnavailable(f"The runner cannot be loaded ({exc.name} is missing).") from exc
    settings = read_runner_settings(environ)
    has_cgroups = settings.driver != "bubblewrap" or Cgroups.find() is not None
    if not has_cgroups and scope_command(environ) is not None:
        # The runner will start in a scope of systemd. This process is not in one.
        has_cgroups, settings = True, structs.replace(settings, memory_guard="watchdog")
    await make_driver(settings).check()
    return has_cgroups


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _end_runner(process: "subprocess.Popen[bytes]") -> None:
    """Close the runner's standard input, which tells it to exit; kill it if it does not."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(RUNNER_CLOSE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
