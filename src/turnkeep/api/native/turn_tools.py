"""Tools of the server for a turn in a sandbox: native ones, HTTP endpoints and MCP servers, called here.

No credential leaves the server. What may be called is what the same turn could call without a sandbox: the tools of its
agent, as far as the key allows them, for whoever asked. A call is broken off when the turn ends.
"""

import time
from collections.abc import Sequence

from starlette.types import ASGIApp

from turnkeep.api import sandbox_wire as wire
from turnkeep.api.http.disconnects import CallerLeft
from turnkeep.api.http.endpoints import Call, Endpoints, Nothing, Policy, Reply
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.turn_calls import while_turn_runs
from turnkeep.api.turn_tokens import bearer, sandbox_turn_id
from turnkeep.engine.tooling import call_tool
from turnkeep.ids import CallId
from turnkeep.model.blocks import ToolUse
from turnkeep.model.turns import Turn
from turnkeep.runtime import Runtime
from turnkeep.tools.ports import CallContext, Outcome, Toolbox
from turnkeep.tools.registry import FixedToolbox

endpoints = Endpoints("sandbox")


@endpoints.add(
    "POST",
    "/v1/sandbox/{turn_id}/tools",
    policy=Policy.TURN,
    body=wire.ToolCall,
    replies=(Reply(status=200, meaning="What the call came to", type=wire.ToolOutcome),),
    errors=(503,),
)
async def call_turn_tool(call: Call[wire.ToolCall, Nothing]) -> ASGIApp:
    """Call a tool of the agent of a running turn, for its sandbox, with the gateway token."""
    runtime = call.runtime
    turn = await runtime.gateway_tokens.turn(runtime.store, sandbox_turn_id(call), bearer(call))
    try:
        outcome = await while_turn_runs(runtime.store, turn, call.receive, _called(runtime, turn, call.body))
    except CallerLeft:
        return no_content()
    passages = [wire.FoundPassage(source=each.source, text=each.text) for each in outcome.passages]
    answer = wire.ToolOutcome(result=outcome.result, error=outcome.error, sources=outcome.sources, passages=passages)
    return json_response(answer)


async def turn_tools(runtime: Runtime, turn: Turn) -> tuple[Sequence[wire.SandboxTool], Sequence[str]]:
    """The tools that this turn may have called here, and what is missing from them."""
    toolbox = await _toolbox(runtime, turn)
    offered = [
        wire.SandboxTool(
            name=spec.name,
            description=spec.description,
            input_schema=spec.input_schema,
            timeout_seconds=spec.timeout_seconds or _default_seconds(runtime, turn),
        )
        for spec in toolbox.specs()
    ]
    return offered, toolbox.notes


async def _called(runtime: Runtime, turn: Turn, asked: wire.ToolCall) -> Outcome:
    """The outcome, whatever goes wrong. Its passages have no numbers yet: those are given where the turn is run."""
    principal = turn.snapshot.principal
    if principal is None:
        return Outcome(error="Nobody is known for whom this turn could call tools.")
    context = CallContext(
        call_id=CallId(asked.call_id),
        turn_id=turn.id,
        conversation_id=turn.conversation_id,
        principal=principal,
        result_chars=runtime.settings.tool_result_chars,
    )
    use = ToolUse(id=context.call_id, name=asked.name, input=asked.arguments)
    toolbox, began = await _toolbox(runtime, turn), time.monotonic()
    outcome = await call_tool(toolbox, use, context, default_timeout=_default_seconds(runtime, turn))
    seconds = time.monotonic() - began
    runtime.observer.tool_called(asked.name, seconds=seconds, failed=outcome.error is not None)
    return outcome


async def _toolbox(runtime: Runtime, turn: Turn) -> Toolbox:
    snapshot = turn.snapshot
    if snapshot.principal is None:
        return FixedToolbox({})
    return await runtime.tools.toolbox(snapshot.agent, snapshot.principal)


def _default_seconds(runtime: Runtime, turn: Turn) -> float:
    agent, server = turn.snapshot.agent, runtime.settings.tool_timeout_seconds
    return min(server, (agent.limits.tool_timeout_seconds if agent else None) or server)
