"""MCP servers: a real one from PyPI, our own over stdio and over HTTP as a process that is killed, and an old one."""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.tools.tool_calls import CALL_ID, ORG, VAULT, a_principal, a_registry, a_toolbox, an_agent, call, names
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.call_identity import Placeholders
from turnkeep.tools.functions import tool
from turnkeep.tools.mcp import McpDefinition, McpPool
from turnkeep.tools.mcp_session import McpUnreachable
from turnkeep.tools.ports import Outcome
from turnkeep.tools.registry import ToolRegistry

HERE = Path(__file__).parent
OURS = {"name": "ours", "command": sys.executable, "args": [str(HERE / "mcp_server.py"), "stdio"]}
OLD = {"name": "old", "command": sys.executable, "args": [str(HERE / "old_mcp_server.py")]}
TIME = {"name": "time", "command": sys.executable, "args": ["-m", "mcp_server_time"]}


class TestAServerFromPyPI:
    async def test_offers_its_tools_and_answers(self) -> None:
        async with a_toolbox(an_agent(mcp_servers=(TIME,))) as toolbox:
            assert names(toolbox) == ["time__get_current_time", "time__convert_time"]
            assert all(spec.is_idempotent and spec.description for spec in toolbox.specs())
            args = {"source_timezone": "Europe/Zurich", "time": "12:00", "target_timezone": "Asia/Tokyo"}
            outcome = await call(toolbox, "time__convert_time", args)
            assert outcome.error is None
            assert "T12:00:00" in str(outcome.result)
            assert "Asia/Tokyo" in str(outcome.result)
            wrong = await call(toolbox, "time__get_current_time", {"timezone": "Nowhere/Land"})
            assert wrong.error
            assert "Nowhere/Land" in wrong.error


class TestAServerOfTheOfficialLibrary:
    async def test_returns_text_structure_and_images_and_announces_changes(self) -> None:
        async with a_registry() as tools:
            agent = an_agent(mcp_servers=(OURS,))
            toolbox = await tools.toolbox(agent, a_principal())
            assert await call(toolbox, "ours__say", {"text": "hello"}) == Outcome(result="hello")
            assert await call(toolbox, "ours__add", {"a": 2, "b": 3}) == Outcome(result={"result": 5})
            pictures = await call(toolbox, "ours__picture")
            assert pictures == Outcome(result="Look:\n[image: image/png, 104 bytes, not shown]")
            failed = await call(toolbox, "ours__fail")
            assert failed.error
            assert "it never works" in failed.error
            assert (await call(toolbox, "ours__add", {"a": "x"})).error
            flags = {spec.name: spec.is_idempotent for spec in toolbox.specs()}
            assert (flags["ours__add"], flags["ours__say"]) == (True, False)
            await call(toolbox, "ours__learn", {"name": "knit"})
            await _until(tools, agent, [*names(toolbox), "ours__knit"])


class TestAProgram:
    async def test_sees_its_own_variables_and_nothing_of_ours(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("TURNKEEP_BOOTSTRAP_KEY", "ours-alone")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "ours-alone")
        async with a_toolbox(an_agent(mcp_servers=({**OLD, "env": {"KEY": "its own"}},))) as toolbox:
            read = json.loads(str((await call(toolbox, "old__environment")).result))
        seen = {name: value[::-1] for name, value in read.items()}
        assert seen["KEY"] == "its own"
        assert "ours-alone" not in str(seen)
        assert "PATH" in seen

    async def test_has_its_secrets_masked_in_its_results(self) -> None:
        async with a_toolbox(an_agent(mcp_servers=({**OLD, "env": {"KEY": "Bearer a-secret-key"}},))) as toolbox:
            assert await call(toolbox, "old__blab") == Outcome(result="my key is ***, keep it")

    async def test_gets_the_id_of_the_call(self) -> None:
        async with a_toolbox(an_agent(mcp_servers=(OLD,))) as toolbox:
            assert CALL_ID in str((await call(toolbox, "old__call_meta")).result)

    async def test_that_refuses_a_call_returns_the_reason(self) -> None:
        async with a_toolbox(an_agent(mcp_servers=(OLD,))) as toolbox:
            outcome = await call(toolbox, "old__refuse")
        assert outcome.error == "The tool's server refused the call: there is nothing of that kind"

    async def test_that_hangs_is_ended_at_the_time_limit(self) -> None:
        async with a_toolbox(an_agent(mcp_servers=({**OLD, "timeout_seconds": 0.5},))) as toolbox:
            assert await call(toolbox, "old__hang") == Outcome(error="The tool did not answer within 0.5 seconds.")

    async def test_is_ended_when_the_tools_are_closed(self) -> None:
        async with a_toolbox(an_agent(mcp_servers=(OLD, {**OLD, "name": "twin", "env": {"A": "1"}}))) as toolbox:
            assert names(toolbox)
            running = _programs()
            assert len(running) == 2
        assert not [process for process in running if process.is_running()]


class TestAProgramThatDies:
    async def test_between_two_calls_is_started_again(self) -> None:
        async with a_toolbox(an_agent(mcp_servers=(OLD,))) as toolbox:
            assert (await call(toolbox, "old__first", {"text": "1"})).result == "first 1"
            (process,) = _programs()
            process.send_signal(signal.SIGKILL)
            await _until_gone(process)
            assert (await call(toolbox, "old__first", {"text": "2"})).result == "first 2"
            assert [each.pid for each in _programs()] != [process.pid]

    async def test_during_a_call_that_may_not_be_repeated_has_an_unknown_outcome(self, tmp_path: Path) -> None:
        file = tmp_path / "calls"
        async with a_toolbox(an_agent(mcp_servers=(OLD,))) as toolbox:
            outcome = await call(toolbox, "old__count_and_die", {"file": str(file)})
            assert outcome.error
            assert outcome.error.startswith("outcome_unknown")
            assert file.read_text() == "x"
            assert (await call(toolbox, "old__count", {"file": str(file)})).result == "2"

    async def test_during_an_idempotent_call_has_it_repeated(self, tmp_path: Path) -> None:
        async with a_toolbox(an_agent(mcp_servers=(OLD,))) as toolbox:
            outcome = await call(toolbox, "old__die_once", {"file": str(tmp_path / "calls")})
        assert outcome == Outcome(result="die_once")
        assert (tmp_path / "calls").read_text() == "xx"


class TestTheListOfTools:
    async def test_is_fetched_once_and_again_after_a_change(self) -> None:
        async with a_registry() as tools:
            agent = an_agent(mcp_servers=(OLD,))
            toolbox = await tools.toolbox(agent, a_principal())
            before = names(toolbox)
            (process,) = _programs()
            process.suspend()  # it could not answer if it were asked
            try:
                assert names(await tools.toolbox(agent, a_principal())) == before
            finally:
                process.resume()
            await call(toolbox, "old__learn", {"name": "knit"})
            await _until(tools, agent, [*before, "old__knit"])

    async def test_holds_only_what_the_agent_allows(self) -> None:
        async with a_toolbox(an_agent(mcp_servers=({**OLD, "tools": ["count", "first", "gone"]},))) as toolbox:
            assert names(toolbox) == ["old__first", "old__count"]

    async def test_names_tools_of_two_servers_apart(self) -> None:
        servers = ({**OLD, "tools": ["first"]}, {**OLD, "tools": ["first"], "name": "twin"})
        async with a_toolbox(an_agent(mcp_servers=servers)) as toolbox:
            assert names(toolbox) == ["old__first", "twin__first"]


class TestAServerThatCannotBeReached:
    @pytest.mark.parametrize(
        "server, words",
        [
            ({"name": "x", "command": "/no/such/program"}, "No such file"),
            (
                {
                    "name": "x",
                    "command": sys.executable,
                    "args": ["-c", "import os, sys; sys.exit('no licence for ' + os.environ['KEY'])"],
                    "env": {"KEY": "a-secret-key"},
                },
                r"no licence for \*\*\*",
            ),
            ({"name": "x", "command": sys.executable, "args": ["-c", "print('hello')"]}, "losed|ended"),
            ({"name": "x", "url": "http://127.0.0.1:1/mcp"}, "connection"),
            ({"name": "x"}, "neither"),
        ],
    )
    async def test_is_left_out_with_the_reason_and_without_the_secret(self, server: Any, words: str) -> None:
        async with a_toolbox(an_agent(mcp_servers=(server, {**OLD, "tools": ["first"]}))) as toolbox:
            assert names(toolbox) == ["old__first"]
            (note,) = toolbox.notes
        assert re.search(words, note), note
        assert "a-secret-key" not in note

    async def test_is_left_out_after_a_timeout(self) -> None:
        silent = McpDefinition(name="x", command=sys.executable, args=["-c", "import time; time.sleep(600)"])
        async with McpPool(vault=VAULT, guard=AddressGuard()) as pool:
            server = pool.server(ORG, silent, Placeholders({}))
            with pytest.raises(McpUnreachable, match="did not answer"):
                await server.tools(seconds=2.0)
            running = _programs()
            with pytest.raises(McpUnreachable):  # at once: it failed a moment ago
                await server.tools(seconds=600)
        assert len(running) == 1
        assert not running[0].is_running()

    async def test_at_a_private_address_is_not_asked(self) -> None:
        agent = an_agent(mcp_servers=({"name": "x", "url": "http://127.0.0.1:1/mcp"},))
        async with a_toolbox(agent, guard=AddressGuard()) as toolbox:
            assert names(toolbox) == []
            assert "not public" in toolbox.notes[0]


class TestAServerOverHttp:
    async def test_responds_gets_headers_announces_changes_and_may_hang(self) -> None:
        async with a_http_server() as (port, _), a_registry() as tools:
            server = {
                "name": "web",
                "url": f"http://127.0.0.1:{port}/mcp",
                "headers": {"X-Key": "of the agent"},
                "timeout_seconds": 2.0,
            }
            agent = an_agent(mcp_servers=(server,))
            toolbox = await tools.toolbox(agent, a_principal())
            assert (await call(toolbox, "web__add", {"a": 2, "b": 3})).result == {"result": 5}
            seen: Any = (await call(toolbox, "web__headers")).result
            assert seen["x-key"] == "of the agent"[::-1]
            await call(toolbox, "web__learn", {"name": "knit"})
            await _until(tools, agent, [*names(toolbox), "web__knit"])
            assert (await call(toolbox, "web__hang")).error == "The tool did not answer within 2 seconds."
            assert (await call(toolbox, "web__say", {"text": "still here"})).result == "still here"

    async def test_that_was_killed_is_left_out_until_it_is_back(self) -> None:
        async with a_http_server() as (port, kill), a_registry() as tools:
            agent = an_agent(mcp_servers=({"name": "web", "url": f"http://127.0.0.1:{port}/mcp"},))
            toolbox = await tools.toolbox(agent, a_principal())
            assert (await call(toolbox, "web__say", {"text": "1"})).result == "1"
            await kill()
            gone = await call(toolbox, "web__say", {"text": "2"})
            assert gone.error
            assert "cannot be reached" in gone.error
            async with a_http_server(port):

                async def is_back() -> bool:
                    return (await call(toolbox, "web__say", {"text": "3"})) == Outcome(result="3")

                await _until_true(is_back)
                assert "web__add" in names(await tools.toolbox(agent, a_principal()))


class TestThePool:
    async def test_shares_a_session_within_an_org_and_never_between_two(self) -> None:
        async with McpPool(vault=VAULT, guard=AddressGuard()) as pool:
            first = pool.server(ORG, _definition(OLD), Placeholders({}))
            assert pool.server(ORG, _definition({**OLD, "name": "other", "tools": []}), Placeholders({})) is first
            assert pool.server(a_principal(org="org_2").org_id, _definition(OLD), Placeholders({})) is not first
            await first.tools()
            assert pool.sessions == 1

    async def test_closes_idle_sessions(self) -> None:
        async with McpPool(vault=VAULT, guard=AddressGuard(), idle_seconds=0.2) as pool:
            await pool.server(ORG, _definition(OLD), Placeholders({})).tools()

            async def is_closed() -> bool:
                return pool.sessions == 0 and not _programs()

            await _until_true(is_closed)

    async def test_ends_a_session_that_a_turn_opened_after_the_close(self) -> None:
        async with McpPool(vault=VAULT, guard=AddressGuard(), idle_seconds=0.1) as pool:
            kept = pool.server(ORG, _definition(OLD), Placeholders({}))

            async def is_forgotten() -> bool:
                return pool.server(ORG, _definition(OLD), Placeholders({})) is not kept

            await kept.tools()
            await _until_true(is_forgotten)
            await kept.tools()
            running = _programs()
            assert len(running) == 1
        assert not running[0].is_running()


class TestAllowedTools:
    @pytest.mark.parametrize(
        "allowed, seen",
        [
            (None, ["look", "web", "old__first"]),
            ((), []),
            (("look",), ["look"]),
            (("web", "old__first"), ["web", "old__first"]),
            (("old__*",), ["old__first"]),
            (("*",), ["look", "web", "old__first"]),
            (("firs", "old"), []),
        ],
    )
    async def test_of_a_key_hold_for_every_kind(self, allowed: tuple[str, ...] | None, seen: list[str]) -> None:
        @tool
        async def look() -> str:
            return "seen"

        http = {"type": "http", "name": "web", "url": "http://127.0.0.1:1/"}
        agent = an_agent("look", http, mcp_servers=({**OLD, "tools": ["first"]},))
        async with a_registry(look) as tools:
            toolbox = await tools.toolbox(agent, a_principal(allowed_tools=allowed))
        assert names(toolbox) == seen
        for name in {"look", "web", "old__first"} - set(seen):
            assert toolbox.get(name) is None

    async def test_hold_for_a_raw_model_too(self) -> None:
        @tool
        async def look() -> str:
            return "seen"

        async with a_registry(look) as tools:
            assert names(await tools.toolbox(None, a_principal())) == ["look"]
            assert names(await tools.toolbox(None, a_principal(allowed_tools=("other",)))) == []


@asynccontextmanager
async def a_http_server(port: int = 0) -> AsyncIterator[tuple[int, Callable[[], Awaitable[None]]]]:
    """Our server as a process, and a way to kill it."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(HERE / "mcp_server.py"), "http", str(port), stderr=asyncio.subprocess.PIPE
    )

    async def kill() -> None:
        if process.returncode is None:
            process.kill()
        await process.wait()

    try:
        assert process.stderr is not None
        async with asyncio.timeout(30):
            async for line in process.stderr:
                if line.startswith(b"listening"):
                    port = int(line.split()[1])
                    break
        yield port, kill
    finally:
        await kill()


def _definition(server: dict[str, Any]) -> McpDefinition:
    return McpDefinition(**server)


async def _until(tools: ToolRegistry, agent: Any, expected: list[str]) -> None:
    async def are_there() -> bool:
        return names(await tools.toolbox(agent, a_principal())) == expected

    await _until_true(are_there)


async def _until_gone(process: psutil.Process) -> None:
    """Until its pipes are closed, which is later than the end of its command line."""

    async def is_gone() -> bool:
        try:
            return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    await _until_true(is_gone)


async def _until_true(holds: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110 - what is waited for happens in another process
            await asyncio.sleep(0.05)


def _programs() -> list[psutil.Process]:
    """The MCP servers that this process has started."""
    children = psutil.Process(os.getpid()).children()
    return [child for child in children if re.search(r"old_mcp_server|sleep\(600\)", _words(child))]


def _words(process: psutil.Process) -> str:
    """Its command line; empty when it has died, perhaps while it was looked at."""
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
