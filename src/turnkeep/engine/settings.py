"""What an operator may set about the engine."""

from typing import TypeVar

from msgspec import Struct, structs

from turnkeep.model.agents import AgentLimits


class EngineSettings(Struct, frozen=True, kw_only=True):
    """Times in seconds. The defaults are those of the documentation."""

    default_model: str = "demo"
    replay_turns: int = 20
    context_chars: int = 400_000
    tool_rounds: int = 5
    tool_result_chars: int = 4_000
    lease_seconds: float = 10.0
    disconnect_grace_seconds: float = 30.0
    provider_timeout_seconds: float = 60.0
    tool_timeout_seconds: float = 30.0
    turn_timeout_seconds: float = 28_800.0
    setup_token_seconds: float = 600.0
    upload_token_seconds: float = 3_600.0
    queue_limit: int = 20
    max_running: int = 2_000
    """Turns that one worker runs at once; adoption stops there, so that others can help."""
    sweep_seconds: float = 1.0
    retention_days: float = 30.0
    max_failures: int = 3

    def within(self, limits: AgentLimits) -> "EngineSettings":
        """These settings for a turn of an agent: its limits where they are tighter."""
        return structs.replace(
            self,
            tool_rounds=_tighter(self.tool_rounds, limits.tool_rounds),
            tool_timeout_seconds=_tighter(self.tool_timeout_seconds, limits.tool_timeout_seconds),
            turn_timeout_seconds=_tighter(self.turn_timeout_seconds, limits.turn_timeout_seconds),
        )

    @property
    def window_turns(self) -> int:
        """What a turn is compiled from: the turns that are replayed, and itself."""
        return self.replay_turns + 1

    @property
    def renew_seconds(self) -> float:
        return min(1.0, self.lease_seconds / 3)

    @property
    def watch_seconds(self) -> float:
        """How often attached readers are reported."""
        return min(5.0, max(0.25, self.disconnect_grace_seconds / 3))


_Amount = TypeVar("_Amount", int, float)


def _tighter(server: _Amount, agent: _Amount | None) -> _Amount:
    return server if agent is None else min(server, agent)
