"""The lines of a run, read by the client as they come from a server that may be newer."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from turnkeep_client import AsyncTurnkeep, Step
from turnkeep_client.agents import RunDelta, RunLine, RunLog, RunResult
from turnkeep_client.wire.sandbox import SourcesLine, StepLine

LINES = (
    b'{"type":"log","level":"info","message":"Loaded"}',
    b'{"type":"delta","text":"Hel","mood":"good"}',
    b'{"type":"step","id":"s1","name":"shell","status":"skipped"}',
    b'{"type":"sources","sources":[{"title":"Atlas","snippet":"Up north.","number":1}]}',
    b"",
    b'{"type":"result","message":"Hello","ts":1}',
)


@asynccontextmanager
async def server(body: bytes) -> AsyncIterator[str]:
    """A server that answers every request with these lines."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/x-ndjson\r\ncontent-length: %d\r\n\r\n" % len(body)
        writer.write(head + body)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listening:
        yield f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


class TestLines:
    async def test_of_every_kind_are_read_with_fields_and_words_of_a_newer_server(self) -> None:
        async with server(b"\n".join(LINES)) as url, AsyncTurnkeep(url, "key") as turnkeep:
            lines: list[RunLine] = [line async for line in turnkeep.agents.run("agent_1", "Hi")]
        assert [type(line) for line in lines] == [RunLog, RunDelta, StepLine, SourcesLine, RunResult]
        assert isinstance(lines[2], Step)
        assert lines[2].status == "skipped"
        assert lines[-1] == RunResult(message="Hello", ts=1)

    async def test_may_hold_separators_of_unicode_lines(self) -> None:
        said = "one\u2028two\u2029three\u0085four"
        lines = f'{{"type":"log","level":"info","message":"{said}"}}\n{{"type":"result","message":"{said}"}}'
        async with server(lines.encode()) as url, AsyncTurnkeep(url, "key") as turnkeep:
            read = [line async for line in turnkeep.agents.run("agent_1", "Hi")]
        assert read == [RunLog(level="info", message=said), RunResult(message=said)]
