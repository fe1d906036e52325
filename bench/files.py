"""Files: uploads and the zip download through the whole server, beside a bare ASGI app on the same uvicorn and disk.

The bare app writes what it receives into a file, and sends files as it reads them; it checks nothing, hashes nothing
and flushes nothing. Ours takes a form apart, looks at the type, hashes, flushes to the disk and makes a row; its zip
carries checksums. Server and client are processes of their own; rounds alternate, and the ratio is the median of them.

Also: how much the server's resident size grows while ten files of 50 MB come in at once.

    python -m bench.files
"""

import asyncio
import hashlib
import multiprocessing
import os
import secrets
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil
import uvicorn
import uvloop

from bench.harness import target
from turnkeep.api.app import create_app
from turnkeep.api.native.sandbox import bag_path
from turnkeep.config import Settings
from turnkeep.engine import Options, Question
from turnkeep.model.principals import Principal
from turnkeep.providers.registry import ProviderRegistry
from turnkeep.providers.scripted import ScriptedProvider, Until
from turnkeep.runtime import open_runtime
from turnkeep.store.commands import NewConversation
from turnkeep.streaming.connection import WatchedProtocol
from turnkeep_client.wire.blocks import Text

Row = dict[str, Any]

MB = 1024 * 1024
FILE_BYTES = 50 * MB
AT_ONCE = 10
BLOCK = MB
KEY = "the-key-of-the-bench"
BOUNDARY = "0f8e5c9c2f9d4d6a"

packages = ("uvicorn", "uvloop", "httptools", "obstore", "multipart")


def run(*, quick: bool = False) -> list[Row]:
    """Throughput of uploads and of the zip, memory, and the targets."""
    rounds = 5 if quick else 15
    with tempfile.TemporaryDirectory(prefix="turnkeep-bench-") as folder:
        with _site(_our_server, Path(folder, "ours")) as ours, _site(_bare_server, Path(folder, "bare")) as bare:
            for _ in range(_ZIPPED):
                _post(ours, ours.zipped)
            uploads = _race(rounds, {"bare ASGI": lambda: _put(bare), "Turnkeep": lambda: _post(ours)})
            zips = _race(rounds, {"bare ASGI": lambda: _get(bare, "/files"), "Turnkeep": lambda: _get(ours, ours.zip)})
        with _site(_our_server, Path(folder, "memory")) as ours:
            memory = _memory(ours)
    return [
        *_figures("upload of 50 MB", uploads),
        *_figures(f"zip of {_ZIPPED} files of 50 MB", zips),
        {
            "figure": f"memory above idle, {AT_ONCE} uploads of 50 MB at once",
            "contender": "Turnkeep",
            "role": "ours",
            "MB": round(memory, 1),
        },
        target("upload throughput against a bare ASGI app", _ratio(uploads), 0.5, at_least=True),
        target("zip throughput against a bare ASGI app", _ratio(zips), 0.5, at_least=True),
        target(f"memory above idle with {AT_ONCE} uploads of 50 MB", memory, 64, unit="MB"),
    ]


def main() -> int:
    for row in run(quick="--quick" in sys.argv):
        print("  ".join(f"{key}={value}" for key, value in row.items()))
    return 0


_ZIPPED = 3
Rates = dict[str, list[float]]
"""MB per second, for each round."""


def _race(rounds: int, contenders: dict[str, Callable[[], float]]) -> Rates:
    rates: Rates = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name in contenders if number % 2 else reversed(contenders):
            rate = contenders[name]()
            if number:  # the first round only warms up
                rates[name].append(rate)
    return rates


def _ratio(rates: Rates) -> float:
    bare, ours = rates.values()
    return statistics.median(mine / theirs for mine, theirs in zip(ours, bare, strict=True))


def _figures(figure: str, rates: Rates) -> list[Row]:
    rows: list[Row] = []
    for (contender, found), role in zip(rates.items(), ("limit", "ours"), strict=True):
        rows.append(
            {
                "figure": figure,
                "contender": contender,
                "role": role,
                "MB_per_second": round(statistics.median(found)),
                **({"ratio_of_rates": round(_ratio(rates), 2)} if role == "ours" else {}),
            }
        )
    return rows


# Servers, each in a process of its own


class Site:
    """A running server, as a client needs to know it."""

    def __init__(self, pid: int, port: int, conversation: str, zipped: str, address: str) -> None:
        self.pid = pid
        self.port = port
        self.conversation = conversation
        self.zipped = zipped
        self.zip = address


@contextmanager
def _site(serve: Callable[[Path, Connection], None], folder: Path) -> Iterator[Site]:
    folder.mkdir()
    context = multiprocessing.get_context("spawn")
    parent, child = context.Pipe()
    process = context.Process(target=serve, args=(folder, child))
    process.start()
    child.close()
    try:
        yield Site(process.pid or 0, *parent.recv())
    finally:
        parent.send("stop")
        process.join(30)
        process.kill()


def _bare_server(folder: Path, parent: Connection) -> None:
    for number in range(_ZIPPED):
        (folder / f"{number}.bin").write_bytes(os.urandom(FILE_BYTES))
    uvloop.run(_serve_bare(folder, parent))


async def _serve_bare(folder: Path, parent: Connection) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-type", b"application/octet-stream")]
        if scope["method"] == "PUT":
            await _copy_in(folder / secrets.token_hex(8), receive)
            await send({"type": "http.response.start", "status": 201, "headers": [(b"content-length", b"0")]})
        else:
            headers.append((b"content-length", str(_ZIPPED * FILE_BYTES).encode()))
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            for number in range(_ZIPPED):
                with (folder / f"{number}.bin").open("rb", buffering=0) as file:
                    while block := file.read(BLOCK):
                        await send({"type": "http.response.body", "body": block, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    await _serve(app, parent, "", "", "")


async def _copy_in(path: Path, receive: Any) -> None:
    with path.open("wb", buffering=0) as file:
        while True:
            message = await receive()
            file.write(message["body"])
            if not message.get("more_body"):
                break
    path.unlink()


def _our_server(folder: Path, parent: Connection) -> None:
    uvloop.run(_serve_ours(folder, parent))


async def _serve_ours(folder: Path, parent: Connection) -> None:
    never = asyncio.Event()
    provider = ScriptedProvider(lambda _: [Until(never.wait)])
    settings = Settings(data_dir=folder, bootstrap_key=KEY, model="scripted")
    async with open_runtime(settings, providers=ProviderRegistry([provider])) as runtime:
        workspace = await runtime.store.workspace(runtime.home_org)
        principal = Principal(
            org_id=runtime.home_org, workspace_id=workspace.id, user_id=None, role="service", key_id=None
        )
        question = Question(principal=principal, message=(Text(text="Go."),), options=Options(background=True))
        turn = (await runtime.engine.ask(question)).turn
        app = create_app(runtime)
        address = bag_path(
            runtime.addresses,
            org_id=runtime.home_org,
            turn_id=turn.id,
            attempt=turn.attempt,
            expires_at=int((time.time() + 3_600) * 1000),
        )
        uploads = await runtime.store.create_conversation(principal, NewConversation())
        await _serve(app, parent, uploads.id, turn.conversation_id, address)


async def _serve(app: Any, parent: Connection, *about: str) -> None:
    listening = socket.create_server(("127.0.0.1", 0), backlog=128)
    config = uvicorn.Config(
        app, http=WatchedProtocol, log_config=None, access_log=False, lifespan="off", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    while not server.started:  # noqa: ASYNC110 - uvicorn has only a flag
        await asyncio.sleep(0.01)
    parent.send((listening.getsockname()[1], *about))
    await asyncio.to_thread(parent.recv)
    server.should_exit = True
    await serving


# Clients


_DATA = hashlib.shake_128(b"bench").digest(FILE_BYTES - 8)


def _put(site: Site) -> float:
    return _request(site, b"PUT /file", b"%PDF-1.7" + _DATA)


def _post(site: Site, conversation: str | None = None) -> float:
    """The same bytes in a form."""
    path = f"POST /v1/conversations/{conversation or site.conversation}/files"
    kind = f"Content-Type: multipart/form-data; boundary={BOUNDARY}\r\nAuthorization: Bearer {KEY}\r\n"
    return _request(site, path.encode(), _form(), kind.encode())


def _form() -> bytes:
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="file"; filename="a.pdf"\r\n\r\n'
    return b"".join((head.encode(), b"%PDF-1.7", _DATA, f"\r\n--{BOUNDARY}--\r\n".encode()))


def _get(site: Site, path: str) -> float:
    return _request(site, f"GET {path}".encode(), b"")


def _request(site: Site, line: bytes, body: bytes, headers: bytes = b"") -> float:
    """MB per second of whichever is larger, from the first byte sent to the last one received."""
    with socket.create_connection(("127.0.0.1", site.port)) as client:
        head = b"%s HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n%sContent-Length: %d\r\n\r\n"
        began = time.perf_counter()
        client.sendall(head % (line, headers, len(body)) + body)
        answer = client.recv(BLOCK)
        received = len(answer)
        buffer = bytearray(BLOCK)
        while count := client.recv_into(buffer):
            received += count
        seconds = time.perf_counter() - began
    assert answer.split(b" ", 2)[1] in {b"200", b"201"}, answer[:500]
    return max(len(body), received) / MB / seconds


def _memory(site: Site) -> float:
    """MB of resident memory at the highest, above what the idle server has after one upload."""
    _post(site)
    time.sleep(0.5)
    process = psutil.Process(site.pid)
    idle = highest = process.memory_info().rss
    done = threading.Event()

    def watch() -> None:
        nonlocal highest
        while not done.is_set():
            highest = max(highest, process.memory_info().rss)
            time.sleep(0.002)

    watching = threading.Thread(target=watch)
    watching.start()
    uploads = [threading.Thread(target=_post, args=(site,)) for _ in range(AT_ONCE)]
    for upload in uploads:
        upload.start()
    for upload in uploads:
        upload.join()
    done.set()
    watching.join()
    return (highest - idle) / MB


if __name__ == "__main__":
    sys.exit(main())
