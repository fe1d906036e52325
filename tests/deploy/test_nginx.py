"""The configuration of nginx in `deploy/`, in a real nginx, before two real servers on one PostgreSQL."""

import asyncio
import re
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path

import httpx
import pytest

from tests.ports import free_ports
from tests.server_process import Serving, environment, serving
from tests.servers import create_database, shared_postgres_uri
from turnkeep_client import AsyncTurnkeep, Turnkeep

CONFIGURATION = Path(__file__).parents[2] / "deploy" / "nginx" / "turnkeep.conf"
KEY = "tk_of_the_operator_0123456789"
LIMIT = 50 * 1024 * 1024
WORDS = 400
SECONDS = 120


@contextmanager
def nginx(folder: Path, servers: list[str]) -> Iterator[str]:
    """nginx with our file, but for the addresses; its address."""
    program = shutil.which("nginx", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
    if program is None:
        pytest.fail("nginx is needed: run `scripts/system nginx`")
    [port] = free_ports(1)
    text = CONFIGURATION.read_text("utf-8")
    for number, address in enumerate(servers, start=1):
        assert f"server server{number}:8787 " in text
        text = text.replace(f"server server{number}:8787 ", f"server {address} ")
    text = text.replace("listen 80;", f"listen 127.0.0.1:{port};")
    (folder / "turnkeep.conf").write_text(text)
    temporary = "\n".join(
        f"{name}_temp_path {folder}/{name};" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"daemon off; worker_processes 2; pid {folder}/pid; error_log {folder}/errors.log warn; user root;\n"
        f"events {{}}\nhttp {{ access_log off; {temporary} include {folder}/turnkeep.conf; }}\n"
    )
    command = [program, "-p", str(folder), "-c", str(folder / "nginx.conf"), "-e", str(folder / "errors.log")]
    checked = subprocess.run([*command, "-t"], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert checked.returncode == 0, checked.stderr
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:
        try:
            wait_for_port(port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            process.wait(SECONDS)


def wait_for_port(port: int) -> None:
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            return
        except OSError:
            assert time.monotonic() < deadline, "nginx does not listen"
            time.sleep(0.05)


class Site:
    """Two servers with nginx in front of them."""

    def __init__(self, folder: Path, database_url: str, stack: ExitStack) -> None:
        shared = {
            "TURNKEEP_DATABASE_URL": database_url,
            "TURNKEEP_SECRET_KEYS": "a secret that is the same on both servers",
            "TURNKEEP_BOOTSTRAP_KEY": KEY,
            "TURNKEEP_SANDBOX_URL": "off",
            "TURNKEEP_LEASE_SECONDS": "3",
            "TURNKEEP_FILES_URL": f"file://{folder}/files",
        }
        self.servers: list[Serving] = []
        for name in ("one", "two"):
            home = folder / name
            home.mkdir()
            self.servers.append(stack.enter_context(serving(home, environment(home, **shared))))
        proxy = folder / "nginx"
        proxy.mkdir()
        self.url = stack.enter_context(nginx(proxy, [one.url.removeprefix("http://") for one in self.servers]))
        self.headers = {"Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One for all tests that leave it as it is: starting it takes long."""
    database = asyncio.run(create_database(shared_postgres_uri(), f"nginx_{secrets.token_hex(4)}"))
    with ExitStack() as stack:
        yield Site(tmp_path_factory.mktemp("site"), database, stack)


@pytest.fixture
def doomed_site(tmp_path: Path) -> Iterator[Site]:
    database = asyncio.run(create_database(shared_postgres_uri(), f"nginx_{secrets.token_hex(4)}"))
    with ExitStack() as stack:
        yield Site(tmp_path, database, stack)


def test_requests_reach_both_servers_and_figures_stay_inside(site: Site) -> None:
    with httpx.Client(base_url=site.url, headers=site.headers, timeout=SECONDS) as client:
        assert [client.get("/healthz").status_code for _ in range(8)] == [200] * 8
        assert client.get("/metrics").status_code == 404


def test_a_stream_is_not_buffered(site: Site) -> None:
    """While the first words are read, the turn is still under way."""
    with (
        httpx.Client(base_url=site.url, headers=site.headers, timeout=SECONDS) as client,
        client.stream(
            "POST", "/v1/turns", json={"message": f"write {WORDS} words"}, headers={"Accept": "text/event-stream"}
        ) as response,
    ):
        assert response.status_code == 200
        text, status = "", None
        for piece in response.iter_text():
            text += piece
            found = re.search(r"turn_[0-9a-f]{32}", text)
            if status is None and found is not None and "event: delta" in text:
                status = client.get(f"/v1/turns/{found[0]}").json()["status"]
        assert status == "running"
        assert "event: result" in text


def test_an_upload_of_the_largest_size_passes_and_a_larger_one_is_refused_by_nginx(site: Site, tmp_path: Path) -> None:
    largest = tmp_path / "largest.txt"
    largest.write_bytes(b"a line of text\n" * (LIMIT // 15) + b"x" * (LIMIT % 15))
    with Turnkeep(site.url, KEY) as turnkeep:
        assert turnkeep.files.upload(largest).size == LIMIT
    with closing(HTTPConnection(site.url.removeprefix("http://"), timeout=SECONDS)) as connection:
        connection.putrequest("POST", "/v1/turns")
        connection.putheader("Content-Length", "70000000")
        connection.endheaders()
        assert connection.getresponse().status == 413


async def test_a_server_that_dies_is_left_out_and_streams_go_on(doomed_site: Site) -> None:
    async with AsyncTurnkeep(doomed_site.url, KEY) as turnkeep:
        streams = [turnkeep.stream(f"write {WORDS} words") for _ in range(4)]
        first_words = asyncio.Semaphore(0)

        async def read(stream: object) -> str:
            text = ""
            async with stream as opened:  # type: ignore[attr-defined]
                async for words in opened.words():
                    if not text:
                        first_words.release()
                    text += words
            return text

        async with asyncio.timeout(SECONDS):
            readers = [asyncio.create_task(read(stream)) for stream in streams]
            for _ in readers:
                await first_words.acquire()
            doomed_site.servers[0].process.kill()
            texts = await asyncio.gather(*readers)
        assert len(set(texts)) == 1
        assert len(texts[0].split()) >= WORDS
    async with httpx.AsyncClient(base_url=doomed_site.url, headers=doomed_site.headers, timeout=SECONDS) as client:
        answered = [(await client.get("/v1/conversations")).status_code for _ in range(10)]
        assert answered == [200] * 10
        assert (await client.post("/v1/turns", json={"message": "hello"})).status_code == 200
