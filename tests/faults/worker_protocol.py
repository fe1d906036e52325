"""What a test and its workers say to each other: one JSON object per line, on standard input and output."""

from typing import Any

import msgspec
from msgspec import Struct

from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.principals import Principal
from turnkeep.model.turns import IfBusy, TurnStatus

ORDERS = "FAULT_ORDERS"
"""The variable that holds a worker's orders."""


class Fault(Struct, frozen=True):
    """At the nth arrival at this place (a Boundary, or `tool_running`) the process gets this signal from itself."""

    signal: str
    place: str
    nth: int = 1

    def __str__(self) -> str:
        return f"{self.signal} at {self.place} {self.nth}"


class Orders(Struct, frozen=True, kw_only=True):
    """What a worker is started with."""

    name: str
    url: str
    journal: str
    principal: Principal
    fault: Fault | None = None
    is_gated: bool = False
    """The model waits for `go` before it says anything."""
    pace: float = 0.0
    lease_seconds: float = 1.0
    is_prepared: bool = True
    """Whether its statements stay prepared."""


# Commands


class Ask(Struct, frozen=True, kw_only=True, tag="ask"):
    text: str
    conversation_id: ConversationId | None = None
    if_busy: IfBusy = "reject"
    idempotency_key: str | None = None
    number: int = 0


class Go(Struct, frozen=True, kw_only=True, tag="go"):
    """Let the model speak."""


class Arm(Struct, frozen=True, kw_only=True, tag="arm"):
    """Count arrivals from now on, for this fault."""

    fault: Fault


Command = Ask | Go | Arm


# Reports


class Ready(Struct, frozen=True, kw_only=True, tag="ready"):
    """The engine runs; SIGTERM is obeyed."""


class Serving(Struct, frozen=True, kw_only=True, tag="serving"):
    """The server listens on that port of the loopback address."""

    port: int


class Armed(Struct, frozen=True, kw_only=True, tag="armed"): ...


class Acknowledged(Struct, frozen=True, kw_only=True, tag="acknowledged"):
    """The claim was answered: from now on this turn may not be lost."""

    number: int
    turn_id: TurnId
    conversation_id: ConversationId
    status: TurnStatus


class Refused(Struct, frozen=True, kw_only=True, tag="refused"):
    number: int
    code: str


class Adopted(Struct, frozen=True, kw_only=True, tag="adopted"):
    turn_id: TurnId


class Ended(Struct, frozen=True, kw_only=True, tag="ended"):
    turn_id: TurnId
    status: TurnStatus


class LetGo(Struct, frozen=True, kw_only=True, tag="let_go"):
    turn_id: TurnId
    reason: str


class Unexpected(Struct, frozen=True, kw_only=True, tag="unexpected"):
    """The engine caught something that it calls a defect."""

    error: str


Report = Ready | Serving | Armed | Acknowledged | Refused | Adopted | Ended | LetGo | Unexpected


def line(said: Any) -> bytes:
    return msgspec.json.encode(said) + b"\n"
