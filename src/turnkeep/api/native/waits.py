"""Turns that wait, and turns that are steered.

A person decides about a call, or the caller sends the result of a client tool, and the turn goes on.

The agent names the approvers: the user who asked (`author`), admins of the workspace, or both. A service key decides as
the user for whom it acts. Without a user, it is the author of what it asked itself, and counts as an admin elsewhere.
Scopes hold here as everywhere: a token or key that does not reach the agent of a turn does not answer its calls, and
one that may not use a tool does not allow a call of it.
"""

import asyncio
from typing import Any

from msgspec import UNSET
from starlette.types import ASGIApp

from turnkeep.api import views
from turnkeep.api.http.endpoints import ApiCall, Endpoints, Nothing, Policy, ResponseSpec
from turnkeep.api.http.idempotency import idempotency_key, request_hash
from turnkeep.api.http.responses import json_response
from turnkeep.api.native.turns import TURN, approvers_of, check_rate, read_turn, turn_id_of, whole_workspace
from turnkeep.engine import Options
from turnkeep.errors import Forbidden, InvalidRequest, NotFound
from turnkeep.ids import CallId
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Turn
from turnkeep.model.waits import CallAnswer, digest_of
from turnkeep.tools.schemas import check_args
from turnkeep_client import wire
from turnkeep_client.wire.blocks import Text

endpoints = Endpoints("turns")

ONE = "/v1/turns/{turn_id}"


@endpoints.add(
    "POST",
    f"{ONE}/approvals",
    policy=Policy.MEMBER,
    body=wire.Decisions,
    responses=(TURN,),
    errors=(403, 404, 409, 413, 503, 507),
)
async def decide_calls(call: ApiCall[wire.Decisions, Nothing]) -> ASGIApp:
    """Allow or deny calls for which a turn waits. The first decision holds; with the last one the turn goes on."""
    turn, is_own = await _turn_to_decide(call)
    answers: dict[CallId, CallAnswer] = {}
    for decision in call.body.decisions:
        call_id = CallId(decision.call_id)
        if call_id in answers:
            raise InvalidRequest(f"There are two decisions about call {call_id}. Send one.")
        answers[call_id] = await answer_of(turn, decision, call.principal)
    principal = call.principal if is_own else whole_workspace(call.principal)
    turn = await call.runtime.engine.answer_calls(principal, turn.id, answers, reason="approval")
    return json_response(await read_turn(call.runtime.store, turn) if is_own else views.turn_of(turn))


@endpoints.add(
    "POST",
    f"{ONE}/results",
    policy=Policy.MEMBER,
    body=wire.ClientResults,
    responses=(TURN,),
    errors=(403, 404, 409, 413, 503, 507),
)
async def send_results(call: ApiCall[wire.ClientResults, Nothing]) -> ASGIApp:
    """Send the results of client tools for which a turn waits. The first result holds; with the last one the turn goes
    on."""
    turn_id = turn_id_of(call)
    turn = await call.runtime.store.turn(call.principal, turn_id)
    call.principal.check_agent(turn.snapshot.agent_id)
    answers: dict[CallId, CallAnswer] = {}
    for sent in call.body.results:
        call_id = CallId(sent.call_id)
        if call_id in answers:
            raise InvalidRequest(f"There are two results of call {call_id}. Send one.")
        if (sent.result is UNSET) == (sent.error is None):
            raise InvalidRequest(f"Call {call_id} needs either a `result` or an `error`.")
        if sent.error is not None:
            answers[call_id] = CallAnswer(verdict="error", value=sent.error, by=name_of(call.principal))
        else:
            answers[call_id] = CallAnswer(verdict="result", value=sent.result, by=name_of(call.principal))
    turn = await call.runtime.engine.answer_calls(call.principal, turn_id, answers, reason="client_tools")
    return json_response(await read_turn(call.runtime.store, turn))


@endpoints.add(
    "POST",
    f"{ONE}/steer",
    policy=Policy.MEMBER,
    body=wire.NewSteer,
    responses=(ResponseSpec(status=202, meaning="The words are stored", type=wire.Steering),),
    headers=("Idempotency-Key",),
    errors=(404, 409, 429, 503, 507),
    limits_itself=True,
)
async def steer_turn(call: ApiCall[wire.NewSteer, Nothing]) -> ASGIApp:
    """Add words to a turn that runs or waits. They reach the model before its next call. If the turn ends before that,
    they become the next turn."""
    turn_id, text = turn_id_of(call), call.body.message
    if not text.strip():
        raise InvalidRequest("The message is empty. Send a text.")
    key = idempotency_key(call)
    options = Options(
        source=call.identity.source,
        idempotency_key=key,
        request_hash=None if key is None else request_hash(call),
    )
    await check_rate(call, options)
    turn, claimed = await call.runtime.engine.steer(call.principal, turn_id, (Text(text=text),), options)
    answer = wire.Steering(
        conversation_id=turn.conversation_id,
        turn_id=turn.id,
        message_id=claimed.user_message_id,
        queued_turn_id=claimed.turn.id,
    )
    return json_response(answer, status=202)


def name_of(principal: Principal) -> str:
    """How the one who answered is shown to the model and to readers."""
    user = principal.user
    if user is None:
        return "an API key"
    return user.name or user.external_id


async def _turn_to_decide(call: ApiCall[Any, Any]) -> tuple[Turn, bool]:
    """The turn of the path, and whether it is the caller's own. Raises what `check_approver` raises."""
    principal, turn_id, store = call.principal, turn_id_of(call), call.runtime.store
    try:
        turn, is_own = await store.turn(principal, turn_id), True
    except NotFound:
        if principal.role != "admin":
            raise
        turn, is_own = await store.turn(whole_workspace(principal), turn_id), False
        if turn.wait is None or "admin" not in approvers_of(turn):
            raise
    check_approver(principal, turn)
    return turn, is_own


def check_approver(principal: Principal, turn: Turn) -> None:
    """Raises Forbidden if the agent of this turn names other approvers, NotFound if the scopes do not reach it."""
    principal.check_agent(turn.snapshot.agent_id)
    approvers = approvers_of(turn)
    is_author = principal.user_id == turn.user_id
    is_admin = principal.role == "admin" or (principal.role == "service" and principal.user_id is None)
    if not (("author" in approvers and is_author) or ("admin" in approvers and is_admin)):
        who = "an admin of the workspace" if "admin" in approvers else "the user who asked"
        raise Forbidden(f"Calls of this agent are decided by {who}.")


async def answer_of(turn: Turn, decision: wire.Decision, principal: Principal) -> CallAnswer:
    """What the principal decides about a call. Raises InvalidRequest for arguments that do not fit the tool, and
    Forbidden for a tool outside of its key."""
    waited = None if turn.wait is None else turn.wait.call(decision.call_id)
    if decision.decision == "deny" and (decision.args is not None or decision.remember is not None):
        raise InvalidRequest("`args` and `remember` belong to a call that is allowed.")
    args = decision.args
    if waited is not None and decision.decision == "allow" and not principal.may_use(waited.name):
        raise Forbidden(f"This key may not use the tool {waited.name}, so it cannot allow a call of it.")
    if args is not None and waited is not None:
        await asyncio.to_thread(check_args, waited.name, waited.schema, args)
        args = None if digest_of(waited.name, args) == waited.digest else args
    return CallAnswer(
        verdict=decision.decision,
        args=args,
        reason=decision.reason,
        is_remembered=decision.remember is not None,
        by=name_of(principal),
        by_id="" if principal.user_id in {None, turn.user_id} else str(principal.user_id),
    )
