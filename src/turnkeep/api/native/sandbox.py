"""What a turn's sandbox asks for: its environment and its configuration, each once, with a token of the turn."""

from collections.abc import Sequence

import msgspec
from msgspec import UNSET
from starlette.types import ASGIApp

from turnkeep.api import sandbox_wire as wire
from turnkeep.api.agent_wire import masked
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.responses import json_response
from turnkeep.api.native.bag import bag_path
from turnkeep.api.native.turn_tools import turn_tools
from turnkeep.api.turn_tokens import spend
from turnkeep.clock import system_clock
from turnkeep.compiler import budget_for, compile
from turnkeep.engine.remote import prompt_of
from turnkeep.model.agents import AgentSpec
from turnkeep.model.messages import Message
from turnkeep.model.turns import Turn
from turnkeep.runtime import Runtime

ONE = "/v1/sandbox/{turn_id}"


endpoints = Endpoints("sandbox")


@endpoints.add(
    "GET",
    f"{ONE}/env",
    policy=Policy.TURN,
    replies=(Reply(status=200, meaning="The environment", type=wire.SandboxEnvironment),),
    errors=(503,),
)
async def read_environment(call: Call[Nothing, Nothing]) -> ASGIApp:
    """The agent's variables, opened, and its set-up script, for the setup token of a running turn."""
    turn = await spend(call, "setup")
    return json_response(_environment(call.runtime, turn))


@endpoints.add(
    "GET",
    f"{ONE}/config",
    policy=Policy.TURN,
    replies=(Reply(status=200, meaning="What the turn is about", type=wire.SandboxConfig),),
    errors=(503,),
)
async def read_config(call: Call[Nothing, Nothing]) -> ASGIApp:
    """Agent, prompt, history, files and model gateway, for the run token of a running turn."""
    turn = await spend(call, "run")
    return json_response(await _config(call.runtime, turn))


def _environment(runtime: Runtime, turn: Turn) -> wire.SandboxEnvironment:
    agent, principal = turn.snapshot.agent, turn.snapshot.principal
    if agent is None or principal is None:
        return wire.SandboxEnvironment(variables={}, setup_script=None)
    opened = runtime.vault.open_spec(principal.org_id, AgentSpec(name="", environment=agent.environment))
    return wire.SandboxEnvironment(
        variables=opened.environment.get("variables", {}), setup_script=opened.environment.get("setup_script")
    )


async def _config(runtime: Runtime, turn: Turn) -> wire.SandboxConfig:
    agent, principal = masked(turn.snapshot.agent or AgentSpec(name="")), turn.snapshot.principal
    turns = runtime.settings.replay_turns
    window = await runtime.store.window(turn.conversation_id, turns=turns + 1)
    asked = next(row for row in window.rows if row.turn_id == turn.id)
    base = runtime.settings.address() if runtime.sandboxes is None else runtime.sandboxes.server_url
    seconds = _seconds_left(runtime, turn, agent)
    dies_at = system_clock() + int(seconds * 1000)
    tools, notes = await turn_tools(runtime, turn)
    return wire.SandboxConfig(
        agent=wire.SandboxAgent(
            instructions=agent.instructions,
            model=turn.model or runtime.settings.model,
            tools=agent.tools,
            mcp_servers=agent.mcp_servers,
            skills=agent.skills,
            allowed_tools=None if principal is None else principal.allowed_tools,
        ),
        prompt=prompt_of(asked),
        conversation=_history(runtime, turn, window.rows, agent),
        chat_id=turn.conversation_id,
        assets=await _assets(runtime, turn, base),
        gateway=wire.SandboxGateway(
            base_url=f"{base}{ONE.format(turn_id=turn.id)}",
            token=runtime.gateway_tokens.make(turn.id, turn.attempt, expires_at=dies_at),
            expires_at=dies_at,
            tools=tools,
            notes=notes,
        ),
        limits=_limits(runtime, agent, seconds),
    )


def _history(runtime: Runtime, turn: Turn, rows: Sequence[Message], agent: AgentSpec) -> Sequence[wire.ChatTurn]:
    """The turns before this one as texts, within the budget."""
    settings = runtime.settings
    budget = budget_for(agent.tokenizer, turns=settings.replay_turns + 1, chars=settings.context_chars)
    compiled = compile(rows, target="sandbox", open_turn=turn.id, budget=budget)
    return msgspec.convert(compiled.messages, type=list[wire.ChatTurn])


async def _assets(runtime: Runtime, turn: Turn, base: str) -> wire.SandboxAssets | None:
    bag = await runtime.store.turn_bag(turn.id, turn.attempt)
    if not bag.files:
        return None
    expires_at = system_clock() + runtime.settings.bag_url_ttl_seconds * 1000
    path = bag_path(runtime.addresses, org_id=bag.org_id, turn_id=turn.id, attempt=turn.attempt, expires_at=expires_at)
    return wire.SandboxAssets(url=f"{base}{path}", expires_at=expires_at)


def _seconds_left(runtime: Runtime, turn: Turn, agent: AgentSpec) -> float:
    server = runtime.settings.turn_timeout_seconds
    seconds = min(server, agent.limits.turn_timeout_seconds or server)
    spent = 0.0 if turn.started_at is None else (system_clock() - turn.started_at) / 1000
    return max(1.0, seconds - spent)


def _limits(runtime: Runtime, agent: AgentSpec, seconds: float) -> wire.SandboxLimits:
    """Rounds and the time of a step are the runner's own, unless the agent has limits: those of the server are meant
    for tools that are calls, not for programs that are written and run."""
    settings = runtime.settings
    return wire.SandboxLimits(
        context_chars=settings.context_chars,
        tool_result_chars=settings.tool_result_chars,
        provider_timeout_seconds=settings.provider_timeout_seconds,
        turn_seconds=seconds,
        max_file_bytes=settings.max_file_bytes,
        tool_rounds=agent.limits.tool_rounds or UNSET,
        step_seconds=agent.limits.tool_timeout_seconds or UNSET,
    )
