"""Tokens of a turn's sandbox that are good for one request: bound to turn and attempt, spent by being used."""

from typing import Any

from turnkeep.api.http.endpoints import Call
from turnkeep.api.identity.service_keys import hash_key
from turnkeep.errors import Unauthorized
from turnkeep.ids import TurnId
from turnkeep.model.turns import Turn
from turnkeep.store.commands import TokenPurpose


def sandbox_turn_id(call: Call[Any, Any]) -> TurnId:
    turn_id = TurnId(call.id("turn_id", "turn"))
    call.notes["turn_id"] = turn_id
    return turn_id


async def spend(call: Call[Any, Any], purpose: TokenPurpose) -> Turn:
    """The turn of the path, for whoever brings its token of that purpose; the token is spent by it.

    A token of another turn is refused without being spent.
    """
    refusal = Unauthorized(f"This needs the {purpose} token of the turn: `Authorization: <token>`. Each is good once.")
    turn_id, store = sandbox_turn_id(call), call.runtime.store
    token_hash = hash_key(bearer(call))
    binding = await store.peek_token(token_hash, purpose)
    if binding is None or binding.turn_id != turn_id:
        raise refusal
    binding = await store.spend_token(token_hash, purpose)
    turn = None if binding is None else await store.running_turn(turn_id, binding.attempt)
    if turn is None:
        raise refusal
    return turn


def bearer(call: Call[Any, Any]) -> str:
    """The token, alone or after `Bearer`."""
    return call.headers.get("authorization", "").removeprefix("Bearer ").strip()
