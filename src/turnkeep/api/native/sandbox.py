"""What the sandbox of a running turn asks for, with a token of that turn or a signed address: its environment, its
configuration, the files of the conversation, and calls of the server's tools.

No credential leaves the server. The sandbox may have called what the same turn could call without a sandbox: the tools
of its agent, as far as the key allows them, for the user who asked. A tool call is cancelled when the turn ends.
"""

import asyncio
import time
from collections.abc import Sequence

import msgspec
from starlette.types import ASGIApp

from turnkeep.api.http.disconnects import ClientDisconnected, while_connected
from turnkeep.api.http.downloads import SAFE_HEADERS, disposition, streamed
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.requests import body_chunks
from turnkeep.api.http.responses import json_response, no_content
from turnkeep.api.identity.authentication import hash_key
from turnkeep.api.identity.turn_tokens import bearer, sandbox_turn_id, spend, turn_has_ended, while_turn_runs
from turnkeep.api.views import masked
from turnkeep.clock import system_clock
from turnkeep.compiler import budget_for, compile
from turnkeep.engine.assembly import standing_instructions
from turnkeep.engine.observer import ObservedToolCall
from turnkeep.engine.outcomes import call_tool
from turnkeep.engine.sandbox.remote_turn import prompt_of
from turnkeep.errors import Conflict, NotFound, Unauthorized
from turnkeep.files.keys import Folder
from turnkeep.files.multipart import file_parts
from turnkeep.files.signed_urls import UrlSigner
from turnkeep.ids import CallId, OrgId, TurnId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.messages import Message
from turnkeep.model.turns import Turn
from turnkeep.model.waits import WaitingCall, digest_of, trust_of
from turnkeep.runtime import Runtime
from turnkeep.tools.ports import CallContext, Outcome, Toolbox, ToolSpec
from turnkeep.tools.registry import FixedToolbox
from turnkeep.tools.waits import box_asks
from turnkeep.trace_context import current_origin
from turnkeep_client.wire import files as file_wire
from turnkeep_client.wire import sandbox as wire
from turnkeep_client.wire.blocks import ToolUse

ONE = "/v1/sandbox/{turn_id}"
OUTPUT_FILES = 100
"""Maximum number of files that one turn may write back."""


endpoints = Endpoints("sandbox")

ANSWER_SECONDS = 20.0
"""How long a runner's request for answers is kept open. Then it asks again."""
ANSWER_TICK_SECONDS = 0.5
"""How often such a request looks for answers. There are no more of them than boxes that wait."""


@endpoints.add(
    "GET",
    f"{ONE}/env",
    policy=Policy.TURN,
    responses=(ResponseSpec(status=200, meaning="The environment", type=wire.SandboxEnvironment),),
    errors=(503,),
)
async def read_environment(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The agent's variables, opened, and its set-up script, for the setup token of a running turn."""
    turn = await spend(call, "setup")
    return json_response(_environment(call.runtime, turn))


@endpoints.add(
    "GET",
    f"{ONE}/config",
    policy=Policy.TURN,
    responses=(ResponseSpec(status=200, meaning="What the turn is about", type=wire.SandboxConfig),),
    errors=(409, 503),
)
async def read_config(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Agent, prompt, history, files and model gateway, for the run token of a running turn."""
    turn = await spend(call, "run")
    asks = () if turn.snapshot.agent is None else box_asks(turn.snapshot.agent)
    if asks and wire.WAITS not in call.headers.get(wire.FEATURES_HEADER.lower(), "").split():
        raise Conflict(
            f"Calls of {', '.join(asks[:5])} need an approval, and this sandbox runner does not know approvals. Update "
            "the runner."
        )
    return json_response(await _config(call.runtime, turn, asks))


@endpoints.add(
    "GET",
    f"{ONE}/bag.zip",
    policy=Policy.SIGNED,
    responses=(ResponseSpec(status=200, meaning="The files of the bag", type=bytes, media_type="application/zip"),),
    errors=(404, 503),
)
async def read_bag(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """The bag of a running turn as a zip, for the signed address that was made for its sandbox."""
    method, path = call.target.split(" ", 1)
    grant = call.runtime.addresses.verify(method, path, call.query_string)
    turn_id = sandbox_turn_id(call)
    try:
        bag = await call.runtime.store.turn_bag(turn_id, int(grant.facts["attempt"]))
    except NotFound as exc:
        raise Unauthorized("This address is not valid any more: its turn has ended.") from exc
    if bag.org_id != grant.org_id:
        raise Unauthorized("This address is not valid.")
    archive = call.runtime.bag.archive(bag.files)
    headers = {
        **SAFE_HEADERS,
        "content-type": "application/zip",
        "content-disposition": disposition("bag.zip"),
        "cache-control": "no-store",
    }
    return await streamed(200, headers, archive.size, archive.blocks)


@endpoints.add(
    "POST",
    f"{ONE}/results",
    policy=Policy.TURN,
    raw_body="multipart/form-data",
    responses=(ResponseSpec(status=201, meaning="The files, as they are called in the bag", type=file_wire.Files),),
    errors=(404, 413, 422, 503, 507),
)
async def write_back(call: ApiCall[Nothing, Nothing]) -> ASGIApp:
    """Add what a turn's sandbox made to the bag. The upload token is spent with it, and not by a form that fails."""
    turn_id = sandbox_turn_id(call)
    token_hash, folder = await _folder(call, turn_id)
    parts = file_parts(
        call.headers.get("content-type", ""),
        body_chunks(call.receive),
        max_files=OUTPUT_FILES,
        advice="Nothing was stored. The token is still valid, for one form: send fewer files, or pack them into a zip.",
    )
    files = await call.runtime.bag.write_back(token_hash, folder, parts)
    return json_response(file_wire.Files(data=[file.as_wire() for file in files]), status=201)


async def _folder(call: ApiCall[Nothing, Nothing], turn_id: TurnId) -> tuple[bytes, Folder]:
    """The hash of the token, and the folder that it opens. The token is checked before the form is read, and spent when
    the files are stored."""
    refusal = Unauthorized("This needs the upload token of the turn: `Authorization: <token>`. Each can be used once.")
    token_hash = hash_key(bearer(call))
    binding = await call.runtime.store.peek_token(token_hash, "upload")
    if binding is None or binding.turn_id != turn_id:
        raise refusal
    try:
        bag = await call.runtime.store.turn_bag(turn_id, binding.attempt)
    except NotFound as exc:
        raise refusal from exc
    return token_hash, Folder(bag.workspace_id, bag.conversation_id)


@endpoints.add(
    "POST",
    "/v1/sandbox/{turn_id}/tools",
    policy=Policy.TURN,
    body=wire.SandboxToolCall,
    responses=(ResponseSpec(status=200, meaning="The outcome of the call", type=wire.ToolOutcome),),
    errors=(503,),
)
async def call_turn_tool(call: ApiCall[wire.SandboxToolCall, Nothing]) -> ASGIApp:
    """Call a tool of the agent of a running turn, for its sandbox, with the gateway token."""
    runtime = call.runtime
    turn = await runtime.gateway_tokens.turn(runtime.store, sandbox_turn_id(call), bearer(call))
    try:
        outcome = await while_turn_runs(runtime.store, turn, call.receive, _called(runtime, turn, call.body))
    except ClientDisconnected:
        return no_content()
    passages = [wire.FoundPassage(source=each.source, text=each.text) for each in outcome.passages]
    answer = wire.ToolOutcome(result=outcome.result, error=outcome.error, sources=outcome.sources, passages=passages)
    return json_response(answer)


@endpoints.add(
    "POST",
    "/v1/sandbox/{turn_id}/answers",
    policy=Policy.TURN,
    body=wire.AwaitedCalls,
    responses=(ResponseSpec(status=200, meaning="The answers, or null", type=wire.SandboxAnswers),),
    errors=(503,),
)
async def await_answers(call: ApiCall[wire.AwaitedCalls, Nothing]) -> ASGIApp:
    """The answers to calls for which the turn waits, with the gateway token. The response comes when all of them are
    there, or after a while without them."""
    runtime = call.runtime
    turn = await runtime.gateway_tokens.turn(runtime.store, sandbox_turn_id(call), bearer(call))
    try:
        answers = await while_connected(call.receive, _answers(runtime, turn, call.body.call_ids))
    except ClientDisconnected:
        return no_content()
    return json_response(wire.SandboxAnswers(answers=answers))


async def _answers(runtime: Runtime, turn: Turn, call_ids: Sequence[str]) -> list[wire.SandboxAnswer] | None:
    """Raises Unauthorized when the turn ends or shall be stopped."""
    ends_at = time.monotonic() + ANSWER_SECONDS
    while True:
        found = await runtime.store.running_turn(turn.id, turn.attempt)
        if found is None or found.cancel_requested_at is not None:
            raise turn_has_ended()
        if found.wait is not None and found.status == "waiting" and found.wait.expires_at <= system_clock():
            found = await runtime.store.end_held_wait(turn.id, turn.attempt) or found
        calls = [None if found.wait is None else found.wait.call(call_id) for call_id in call_ids]
        answered = [_answer(call) for call in calls if call is not None and call.answer is not None]
        if len(answered) == len(calls):
            return answered
        if time.monotonic() >= ends_at:
            return None
        await asyncio.sleep(ANSWER_TICK_SECONDS)


def _answer(call: WaitingCall) -> wire.SandboxAnswer:
    answer = call.answer
    assert answer is not None
    return wire.SandboxAnswer(
        call_id=call.id,
        verdict=answer.verdict,
        digest=answer.digest,
        args=answer.args,
        reason=answer.reason,
        value=answer.value,
        by=answer.by,
        is_remembered=answer.is_remembered,
    )


def bag_path(signer: UrlSigner, *, org_id: OrgId, turn_id: TurnId, attempt: int, expires_at: int) -> str:
    """The signed path from which the sandbox of this attempt fetches the files, until `expires_at`."""
    path = ONE.format(turn_id=turn_id) + "/bag.zip"
    return signer.sign("GET", path, org_id=org_id, expires_at=expires_at, facts={"attempt": attempt})


async def turn_tools(runtime: Runtime, turn: Turn) -> tuple[Sequence[wire.SandboxTool], Sequence[str]]:
    """The tools that this turn may call on the server, and notes about those that are missing."""
    toolbox = await _toolbox(runtime, turn)
    offered = [
        wire.SandboxTool(
            name=spec.name,
            description=spec.description,
            input_schema=spec.input_schema,
            timeout_seconds=spec.timeout_seconds or _default_seconds(runtime, turn),
            waits_for=spec.waits_for,
            identity=spec.identity_for({}) or spec.name,
        )
        for spec in toolbox.specs()
    ]
    return offered, toolbox.notes


async def _called(runtime: Runtime, turn: Turn, asked: wire.SandboxToolCall) -> Outcome:
    """The outcome of the call, also if it failed. Its passages get their numbers later, where the turn is run."""
    principal = turn.snapshot.principal
    if principal is None:
        return Outcome(error="This turn has no user for whom tools could be called.")
    context = CallContext(
        call_id=CallId(asked.call_id),
        turn_id=turn.id,
        conversation_id=turn.conversation_id,
        principal=principal,
        result_chars=runtime.settings.tool_result_chars,
        traceparent=current_origin().traceparent,
    )
    use = ToolUse(id=context.call_id, name=asked.name, input=asked.arguments)
    toolbox, observed = await _toolbox(runtime, turn), ObservedToolCall(turn, use, in_sandbox=True)
    tool = toolbox.get(use.name)
    if tool is not None and not await _may_run(runtime, turn, use, tool.spec):
        return Outcome(error=f"{use.name} was not run: nobody has allowed this call, or it has begun before.")
    runtime.observer.reached("tool_starting", turn.id)
    seconds = _default_seconds(runtime, turn)
    outcome = observed.outcome = await call_tool(toolbox, use, context, default_timeout=seconds)
    observed.end()
    runtime.observer.tool_called(observed)
    return outcome


async def _may_run(runtime: Runtime, turn: Turn, use: ToolUse, spec: ToolSpec) -> bool:
    """Whether the call needs no answer, or a person has allowed it with just these arguments. The runner asks before it
    calls; here the server looks for itself. A call that was allowed begins once, and one that was denied does not begin
    because its tool is trusted."""
    if spec.waits_for is None:
        return True
    if spec.waits_for == "client_tools":
        return False
    identity = spec.identity_for(use.input)
    if identity is None:
        return True
    waited = None if turn.wait is None else turn.wait.call(use.id)
    if waited is not None and waited.name == use.name:
        return await runtime.store.spend_answer(turn.id, turn.attempt, use.id, digest_of(use.name, use.input))
    trusted = await runtime.store.trusted_tools(turn.conversation_id)
    return trust_of(turn.snapshot.agent_id, identity) in trusted


async def _toolbox(runtime: Runtime, turn: Turn) -> Toolbox:
    snapshot = turn.snapshot
    if snapshot.principal is None:
        return FixedToolbox({})
    return await runtime.tools.toolbox(snapshot.agent, snapshot.principal, turn.conversation_id, snapshot.client_tools)


def _default_seconds(runtime: Runtime, turn: Turn) -> float:
    agent, server = turn.snapshot.agent, runtime.settings.tool_timeout_seconds
    return min(server, (agent.limits.tool_timeout_seconds if agent else None) or server)


def _environment(runtime: Runtime, turn: Turn) -> wire.SandboxEnvironment:
    agent, principal = turn.snapshot.agent, turn.snapshot.principal
    if agent is None or principal is None:
        return wire.SandboxEnvironment(variables={}, setup_script=None)
    opened = runtime.vault.open_spec(principal.org_id, AgentSpec(name="", environment=agent.environment))
    return wire.SandboxEnvironment(
        variables=opened.environment.get("variables", {}),
        setup_script=opened.environment.get("setup_script"),
        image=opened.environment.get("image") or msgspec.UNSET,
    )


async def _config(runtime: Runtime, turn: Turn, asks: Sequence[str]) -> wire.SandboxConfig:
    agent, principal = masked(turn.snapshot.agent or AgentSpec(name="")), turn.snapshot.principal
    turns = runtime.settings.replay_turns
    window = await runtime.store.window(turn.conversation_id, turns=turns + 1)
    asked = next(row for row in window.rows if row.turn_id == turn.id)
    base = runtime.settings.address() if runtime.sandboxes is None else runtime.sandboxes.server_url
    seconds = _seconds_left(runtime, turn, agent)
    dies_at = system_clock() + int((seconds + runtime.settings.sandbox_approval_seconds) * 1000)
    tools, notes = await turn_tools(runtime, turn)
    return wire.SandboxConfig(
        agent=wire.SandboxAgent(
            instructions=standing_instructions(agent, turn.snapshot.conversation_instructions),
            model=turn.model or runtime.settings.model,
            tools=agent.tools,
            mcp_servers=agent.mcp_servers,
            skills=msgspec.convert(agent.skills, type=tuple[wire.SandboxSkill, ...]),
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
            tools=tuple(tools),
            notes=tuple(notes),
        ),
        limits=_limits(runtime, agent, seconds),
        asks=tuple(asks),
        trusted=await _trusted(runtime, turn),
    )


async def _trusted(runtime: Runtime, turn: Turn) -> tuple[str, ...]:
    """The identities of tools of this agent whose calls were allowed for the whole conversation."""
    prefix = trust_of(turn.snapshot.agent_id, "")
    trusted = await runtime.store.trusted_tools(turn.conversation_id)
    return tuple(sorted(each.removeprefix(prefix) for each in trusted if each.startswith(prefix)))


def _history(runtime: Runtime, turn: Turn, rows: Sequence[Message], agent: AgentSpec) -> tuple[wire.ChatTurn, ...]:
    """The earlier turns as texts, within the budget."""
    settings = runtime.settings
    budget = budget_for(agent.tokenizer, turns=settings.replay_turns + 1, chars=settings.context_chars)
    compiled = compile(rows, target="sandbox", open_turn=turn.id, budget=budget)
    return msgspec.convert(compiled.messages, type=tuple[wire.ChatTurn, ...])


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
    """The runner has its own limits of rounds and of the time of a step, unless the agent sets them: the limits of the
    server are for tool calls, not for programs that are written and run."""
    settings = runtime.settings
    return wire.SandboxLimits(
        context_chars=settings.context_chars,
        tool_result_chars=settings.tool_result_chars,
        provider_timeout_seconds=settings.provider_timeout_seconds,
        turn_seconds=seconds,
        max_file_bytes=settings.max_file_bytes,
        tool_rounds=agent.limits.tool_rounds or None,
        step_seconds=agent.limits.tool_timeout_seconds or None,
    )
