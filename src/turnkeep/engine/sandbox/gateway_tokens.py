"""The token with which a turn's sandbox reaches the model gateway: a signed value, since every model call shows it.

It names the turn and the attempt, and is worth nothing once either has ended.

Decision: docs/decisions/0902
"""

from collections.abc import Sequence

from turnkeep.clock import Clock, system_clock
from turnkeep.errors import Unauthorized
from turnkeep.ids import TurnId
from turnkeep.model.turns import Turn
from turnkeep.signed_values import SigningKeys
from turnkeep.store.ports import TurnStore

GATEWAY_TOKEN = "tkg_"
MAX_CHARS = 200


class GatewayTokens:
    """Signs and verifies with one set of secrets: the first signs, all verify."""

    def __init__(self, secrets: Sequence[str], *, clock: Clock = system_clock) -> None:
        self._keys = SigningKeys(secrets, purpose="gateway tokens", encode=bytes.hex)
        self._clock = clock

    def make(self, turn_id: TurnId, attempt: int, *, expires_at: int) -> str:
        signed = f"{GATEWAY_TOKEN}{turn_id}.{attempt}.{expires_at}"
        return f"{signed}.{self._keys.sign(signed.encode())}"

    async def turn(self, store: TurnStore, turn_id: TurnId, token: str) -> Turn:
        """The running turn that this token was made for. Raises Unauthorized for any other."""
        refusal = Unauthorized("This needs the gateway token of a turn that runs. It ends with the turn.")
        signed, _, signature = token.rpartition(".")
        if len(token) > MAX_CHARS or not token.isascii():
            raise refusal
        if not self._keys.is_signed(signed.encode(), signature):
            raise refusal
        made_for, attempt, expires_at = signed.removeprefix(GATEWAY_TOKEN).split(".")
        if made_for != turn_id or int(expires_at) <= self._clock():
            raise refusal
        turn = await store.running_turn(turn_id, int(attempt))
        if turn is None:
            raise refusal
        return turn
