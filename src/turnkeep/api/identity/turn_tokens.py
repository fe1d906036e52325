"""Tokens that the sandbox of a turn sends, and work that the server does for a turn only while the turn runs.

A token is bound to one turn and one attempt, and can be used once.
"""

import asyncio
from collections.abc import Awaitable
from typing import Any, NoReturn, TypeVar

from starlette.types import Receive

from turnkeep.api.http.disconnects import while_connected
from turnkeep.api.http.endpoints import ApiCall
from turnkeep.api.identity.authentication import hash_key
from turnkeep.errors import TurnkeepError, Unauthorized
from turnkeep.ids import TurnId
from turnkeep.model.turns import Turn
from turnkeep.store.commands import TokenPurpose
from turnkeep.store.ports import TurnStore

WATCH_SECONDS = 1.0
"""How often a running call checks whether its turn still runs."""

Done = TypeVar("Done")


def sandbox_turn_id(call: ApiCall[Any, Any]) -> TurnId:
    turn_id = TurnId(call.id("turn_id", "turn"))
    call.notes["turn_id"] = turn_id
    return turn_id


async def spend(call: ApiCall[Any, Any], purpose: TokenPurpose) -> Turn:
    """The turn of the path, if the request has its token of that purpose. The token cannot be used again.

    A token of another turn is refused and stays valid.
    """
    refusal = Unauthorized(
        f"This needs the {purpose} token of the turn: `Authorization: <token>`. Each can be used once."
    )
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


def bearer(call: ApiCall[Any, Any]) -> str:
    """The token, alone or after `Bearer`."""
    return call.headers.get("authorization", "").removeprefix("Bearer ").strip()


async def while_turn_runs(store: TurnStore, turn: Turn, receive: Receive, work: Awaitable[Done]) -> Done:
    """The result of the work. The work is cancelled when the client disconnects (raises ClientDisconnected), or when
    the turn ends or shall be stopped (raises Unauthorized)."""
    return await while_connected(receive, work, _turn_ended(store, turn))


def turn_has_ended() -> Unauthorized:
    return Unauthorized("The turn has ended, and this token with it.")


async def _turn_ended(store: TurnStore, turn: Turn) -> NoReturn:
    while True:
        await asyncio.sleep(WATCH_SECONDS)
        try:
            running = await store.running_turn(turn.id, turn.attempt)
            if running is None or running.cancel_requested_at is not None:
                break
        except TurnkeepError:
            continue  # the database is away; the next check decides
    raise turn_has_ended()
