"""The servers that are compared: how each one is started, and how it gets a conversation with a history."""

import http.client
import json
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from bench.e2e.dialects import KEY
from bench.e2e.processes import Process, free_port
from tests.server_process import TURNKEEP, clean_environment

ROOT = Path(__file__).resolve().parents[2]
PEERS = ROOT / ".venv-bench" / "bin" / "python"
"""The peers have an environment of their own; `scripts/setup bench` makes it."""

CACHED_BYTECODE = {"PYTHONDONTWRITEBYTECODE": ""}
"""A start compiles no source a second time, as after an installation."""

Database = Literal["sqlite", "postgres", "memory"]
Role = Literal["floor", "ours", "peer"]


@dataclass(frozen=True)
class Site:
    """What a server is given: a directory and a port of its own, a provider, a database, and perhaps a Redis."""

    directory: Path
    port: int
    provider: str
    database: str
    redis: str


@dataclass(frozen=True)
class Contender:
    """One server. `launch` returns its command, and the variables that it needs."""

    name: str
    label: str
    role: Role
    database: Database
    dialect: str
    ready: str
    launch: Callable[[Site], tuple[Sequence[str], dict[str, str]]]
    seed: Callable[["Server", Sequence[dict[str, Any]]], str] | None = None
    """Makes a conversation that has these messages (in the form of Chat Completions), and returns its id."""
    with_redis: bool = False
    is_tried_live: bool = True
    """Whether it is given hundreds of live turns at once."""


@dataclass
class Server:
    """A contender that runs."""

    contender: Contender
    site: Site
    process: Process = field(init=False)

    def start(self) -> None:
        """Return when it is ready."""
        command, variables = self.contender.launch(self.site)
        self.site.directory.mkdir(exist_ok=True)
        self.process = Process(
            self.contender.name,
            command,
            env=clean_environment(PYTHONPATH=str(ROOT)) | CACHED_BYTECODE | variables,
            cwd=self.site.directory,
            log=self.site.directory.with_suffix(".log"),
        )
        self.process.wait_ready(self.site.port, self.contender.ready)

    def on_other_port(self) -> None:
        """For the next start: the old port may still be taken."""
        self.site = Site(**vars(self.site) | {"port": free_port()})

    def call(self, method: str, path: str, body: Any, headers: Mapping[str, str] | None = None) -> Any:
        """A request with JSON in both directions. Raises RuntimeError with what the server said."""
        connection = http.client.HTTPConnection("127.0.0.1", self.site.port, timeout=60)
        try:
            connection.request(method, path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            answered = response.read()
        finally:
            connection.close()
        if response.status >= 300:
            raise RuntimeError(f"{self.contender.name}: {method} {path}: {response.status} {answered[:500].decode()}")
        return json.loads(answered)


def history(turns: int, *, with_tools: bool = False) -> list[dict[str, Any]]:
    """Messages of that many turns. A question has 200 characters and an answer 800, as in the bench of the store."""
    messages: list[dict[str, Any]] = []
    for number in range(turns):
        messages.append({"role": "user", "content": f"{number}: ".ljust(200, "q")})
        if with_tools:
            call = {"id": f"call_{number}", "type": "function", "function": {"name": "look", "arguments": _ARGUMENTS}}
            messages.append({"role": "assistant", "content": "Let me look.", "tool_calls": [call]})
            messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": "r" * 2_000})
        messages.append({"role": "assistant", "content": f"{number}: ".ljust(800, "a")})
    return messages


_ARGUMENTS = json.dumps({"what": "x" * 270})


def _uvicorn(app: str, site: Site, *, python: str = sys.executable) -> list[str]:
    """The server that the peers' manuals name, with its quick parts and without an access log."""
    command = [python, "-m", "uvicorn", app, "--port", str(site.port), "--loop", "uvloop"]
    return [*command, "--http", "httptools", "--no-access-log", "--log-level", "warning", "--backlog", "4096"]


def _variables(site: Site) -> dict[str, str]:
    return {"OPENAI_BASE_URL": site.provider, "OPENAI_API_KEY": "bench", "BENCH_DATABASE": site.database}


def _floor(site: Site) -> tuple[Sequence[str], dict[str, str]]:
    return _uvicorn("bench.e2e.floor:app", site), _variables(site)


def _turnkeep(site: Site, *flags: str) -> tuple[Sequence[str], dict[str, str]]:
    url = site.database if site.database.startswith("postgresql:") else f"sqlite:///{site.database}"
    variables = _variables(site) | {
        "TURNKEEP_DATA_DIR": str(site.directory / "data"),
        "TURNKEEP_DATABASE_URL": url,
        "TURNKEEP_BOOTSTRAP_KEY": KEY,
        "TURNKEEP_MODEL": "openai/bench",
        "TURNKEEP_SANDBOX_URL": "off",
        "XDG_STATE_HOME": str(site.directory / "state"),
    }
    return [*TURNKEEP, "serve", "--port", str(site.port), *flags], variables


def _turnkeep_workers(site: Site) -> tuple[Sequence[str], dict[str, str]]:
    return _turnkeep(site, "--workers", "2", "--redis-url", site.redis)


def _import(server: Server, messages: Sequence[dict[str, Any]]) -> str:
    found = server.call("POST", "/v1/conversations/import", messages, {"Authorization": f"Bearer {KEY}"})
    identity: str = found["conversation"]["id"]
    return identity


def _agents(site: Site) -> tuple[Sequence[str], dict[str, str]]:
    return _uvicorn("bench.peers.agents_server:app", site, python=str(PEERS)), _variables(site)


def _add_items(server: Server, messages: Sequence[dict[str, Any]]) -> str:
    session = uuid.uuid4().hex
    server.call("POST", f"/sessions/{session}/items", list(messages))
    return session


def _agno(site: Site) -> tuple[Sequence[str], dict[str, str]]:
    return _uvicorn("bench.peers.agno_server:app", site, python=str(PEERS)), _variables(site)


def _langgraph(site: Site) -> tuple[Sequence[str], dict[str, str]]:
    graph = ROOT / "bench" / "peers" / "langgraph_graph.py"
    config = site.directory / "langgraph.json"
    config.write_text(json.dumps({"dependencies": ["."], "graphs": {"agent": f"{graph}:graph"}}))
    command = [str(PEERS.parent / "langgraph"), "dev", "--config", str(config), "--port", str(site.port)]
    flags = ["--no-browser", "--no-reload", "--n-jobs-per-worker", "16", "--server-log-level", "WARNING"]
    return [*command, *flags], _variables(site) | {"LANGSMITH_TRACING": "false", "LANGGRAPH_CLI_NO_ANALYTICS": "1"}


def _update_state(server: Server, messages: Sequence[dict[str, Any]]) -> str:
    thread: str = server.call("POST", "/threads", {"metadata": {"graph_id": "agent"}})["thread_id"]
    server.call("POST", f"/threads/{thread}/state", {"values": {"messages": list(messages)}, "as_node": "answer"})
    return thread


def _both(name: str, label: str, role: Role, **fields: Any) -> list[Contender]:
    """The same server on SQLite and on PostgreSQL."""
    return [
        Contender(name=f"{name}-{database}", label=label, role=role, database=database, **fields)
        for database in ("sqlite", "postgres")
    ]


CONTENDERS: Sequence[Contender] = (
    *_both("floor", "bare ASGI app", "floor", dialect="floor", ready="/ready", launch=_floor),
    *_both("turnkeep", "Turnkeep", "ours", dialect="turnkeep", ready="/readyz", launch=_turnkeep, seed=_import),
    Contender(
        name="turnkeep-workers",
        label="Turnkeep, 2 workers, Redis",
        role="ours",
        database="postgres",
        dialect="turnkeep",
        ready="/readyz",
        launch=_turnkeep_workers,
        seed=_import,
        with_redis=True,
    ),
    *_both(
        "agents", "FastAPI + openai-agents", "peer", dialect="agents", ready="/ready", launch=_agents, seed=_add_items
    ),
    *_both("agno", "Agno AgentOS", "peer", dialect="agno", ready="/health", launch=_agno, is_tried_live=False),
    Contender(
        name="langgraph-memory",
        label="LangGraph dev server",
        role="peer",
        database="memory",
        dialect="langgraph",
        ready="/ok",
        launch=_langgraph,
        seed=_update_state,
        is_tried_live=False,
    ),
)


def chosen(only: Sequence[str]) -> list[Contender]:
    """Those whose name, or its beginning up to a dash, was given; all of them if none was. Raises ValueError."""
    found = [
        contender
        for contender in CONTENDERS
        if not only or any(f"{contender.name}-".startswith(f"{name}-") for name in only)
    ]
    known = [contender.name for contender in CONTENDERS]
    for name in only:
        if not any(f"{one}-".startswith(f"{name}-") for one in known):
            raise ValueError(f"no such contender: {name}; there are {', '.join(known)}")
    return found
