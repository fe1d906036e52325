"""A PgBouncer of the test's own, in front of a PostgreSQL of the tests. `scripts/system pgbouncer` installs it."""

import re
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Literal, Self
from urllib.parse import parse_qs, quote, urlsplit

from tests import servers
from turnkeep.store.postgres.io.roles import client_login

PoolMode = Literal["transaction", "session", "statement"]

POOL_SIZE = 4
"""Connections to the database for each login. They are few, so that transactions often change their connection."""

_PORT = 6432  # only names the socket file; nothing listens on TCP
_KEEPS_STATEMENTS_SINCE = (1, 21)
_START_SECONDS = 30


class PgBouncer:
    """Listens on a Unix socket in a directory of its own. It can be killed and started again."""

    def __init__(self, database_uri: str, *, mode: PoolMode, max_statements: int = 200) -> None:
        """It lets in the users of a store on this database, and asks for no password, as the servers of the tests.
        With 0 for `max_statements` it is as one before 1.21, which knows nothing of prepared statements."""
        self._database_uri = database_uri
        self._account = servers.server_account()
        self._folder = servers.private_directory(self._account)
        self._mode = mode
        self._max_statements = max_statements
        self._process: subprocess.Popen[bytes] | None = None
        self._write([servers.SUPERUSER, client_login(urlsplit(database_uri).path.removeprefix("/"))])

    @property
    def uri(self) -> str:
        """The address of the same database, through this pooler."""
        parts = urlsplit(self._database_uri)
        return f"{parts.scheme}://{parts.netloc}{parts.path}?host={quote(str(self._folder), safe='')}&port={_PORT}"

    @property
    def keeps_statements(self) -> bool:
        """Whether a statement that a client has prepared is known on every connection that it gets."""
        return self._mode == "session" or (self._max_statements > 0 and version() >= _KEEPS_STATEMENTS_SINCE)

    def start(self) -> None:
        log = (self._folder / "log").open("ab")
        with log:
            self._process = subprocess.Popen(
                [program(), str(self._folder / "pgbouncer.ini")],
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                **servers.credentials(self._account),
            )
        deadline = time.monotonic() + _START_SECONDS
        while not self._socket.is_socket():
            assert self._process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.02)

    def kill(self) -> None:
        """End it without a word to its clients. Their connections and transactions end with it."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
        self._socket.unlink(missing_ok=True)

    def said(self) -> str:
        """The end of its log."""
        return (self._folder / "log").read_text(errors="replace")[-4_000:]

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)

    @property
    def _socket(self) -> Path:
        return self._folder / f".s.PGSQL.{_PORT}"

    def _write(self, logins: Sequence[str]) -> None:
        query = parse_qs(urlsplit(self._database_uri).query)
        users = self._folder / "users.txt"
        users.write_text("".join(f'"{login}" ""\n' for login in logins))
        settings = {
            "listen_addr": "",
            "listen_port": _PORT,
            "unix_socket_dir": self._folder,
            "unix_socket_mode": "0777",
            "auth_type": "trust",
            "auth_file": users,
            "pool_mode": self._mode,
            "default_pool_size": 50 if self._mode == "session" else POOL_SIZE,
            "max_client_conn": 500,
            "server_login_retry": 1,
            "server_check_delay": 0,
        }
        if version() >= _KEEPS_STATEMENTS_SINCE:
            settings["max_prepared_statements"] = self._max_statements
        lines = [f"{name} = {value}" for name, value in settings.items()]
        database = f"* = host={query['host'][0]} port={query['port'][0]}"
        (self._folder / "pgbouncer.ini").write_text("\n".join(["[databases]", database, "[pgbouncer]", *lines, ""]))


def program() -> str:
    found = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
    assert found is not None, "pgbouncer is not installed; run scripts/system pgbouncer"
    return found


def version() -> tuple[int, ...]:
    said = subprocess.run([program(), "--version"], capture_output=True, text=True, timeout=20, check=True).stdout
    numbers = re.search(r"(\d+)\.(\d+)", said)
    assert numbers is not None, said
    return tuple(map(int, numbers.groups()))
