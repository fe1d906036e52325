"""Every error that the server raises on purpose: those that the API answers with, and those of its own.

    TurnkeepError
    ├── CallerError …          the caller can fix it
    │   ├── InvalidRequest …
    │   │   ├── AttachedElsewhere   the engine attaches copies instead
    │   │   └── UnsupportedOption   the model cannot honour an option of the question
    │   └── Conflict …
    │       ├── ConversationChanged the engine looks at the conversation again
    │       └── ExternalIdTaken     the conversation of that id is used instead
    ├── WorldError …           something outside failed; a retry may help
    ├── Fenced                 this worker no longer holds the turn; stop quietly
    │   ├── LeaseLost
    │   │   └── HandedOver
    │   └── TurnSettled
    └── Defect                 a bug or a broken installation; an operator must look
        ├── SchemaMismatch
        └── BoundaryBroken

The tree that callers can meet is drawn in `turnkeep_client.wire.errors`. Nothing here knows about HTTP;
`api/http/problem_details.py` maps families to a status.
"""

from collections.abc import Sequence

from turnkeep_client.wire.base import ConversationId, FileId
from turnkeep_client.wire.errors import (
    BUSY_ADVICE,
    AlreadyDecided,
    CallerError,
    Conflict,
    ConversationBusy,
    Defect,
    FileTooLarge,
    Forbidden,
    HeadersTooLarge,
    IdempotencyConflict,
    InvalidRequest,
    LimitReached,
    NotFound,
    OutOfScope,
    QueueFull,
    QuotaExceeded,
    RateLimited,
    ReachedLimit,
    RequestTimeout,
    SandboxUnavailable,
    StorageFull,
    TooLarge,
    TooManyFiles,
    TurnkeepError,
    Unauthorized,
    Unavailable,
    UnsupportedMediaType,
    WorldError,
)

__all__ = [
    "BUSY_ADVICE",
    "AlreadyDecided",
    "AttachedElsewhere",
    "BoundaryBroken",
    "CallerError",
    "Conflict",
    "ConversationBusy",
    "ConversationChanged",
    "Defect",
    "ExternalIdTaken",
    "Fenced",
    "FileTooLarge",
    "Forbidden",
    "HandedOver",
    "HeadersTooLarge",
    "IdempotencyConflict",
    "InvalidRequest",
    "LeaseLost",
    "LimitReached",
    "NotFound",
    "OutOfScope",
    "QueueFull",
    "QuotaExceeded",
    "RateLimited",
    "ReachedLimit",
    "RequestTimeout",
    "SandboxUnavailable",
    "SchemaMismatch",
    "StorageFull",
    "TooLarge",
    "TooManyFiles",
    "TurnSettled",
    "TurnkeepError",
    "Unauthorized",
    "Unavailable",
    "UnsupportedMediaType",
    "UnsupportedOption",
    "WorldError",
]


class AttachedElsewhere(InvalidRequest):
    """These files belong to other conversations or to the workspace. A copy of each can be attached."""

    def __init__(self, detail: str, file_ids: Sequence[FileId] = ()) -> None:
        super().__init__(detail)
        self.file_ids = tuple(file_ids)


class UnsupportedOption(InvalidRequest):
    """The model cannot honour an option of the question. `option` names it, as `model.sampling.Sampling` does."""

    def __init__(self, detail: str, *, option: str) -> None:
        super().__init__(detail)
        self.option = option


class ConversationChanged(Conflict):
    """The conversation has other settings than those from which the turn was made. Look at it again."""


class ExternalIdTaken(Conflict):
    """The caller has a conversation of this external id. Use that one."""

    def __init__(self, conversation_id: ConversationId) -> None:
        super().__init__(f"The conversation {conversation_id} has this `external_id`. Use it, or another id.")
        self.conversation_id = conversation_id


class Fenced(TurnkeepError):
    """This worker no longer holds the turn. Nothing was written; stop working on it."""

    code = "fenced"


class LeaseLost(Fenced):
    """Another worker has taken the turn over (its attempt is higher than ours)."""

    code = "lease_lost"


class HandedOver(LeaseLost):
    """This worker shuts down, and another one goes on with the turn."""


class TurnSettled(Fenced):
    """The turn has already ended."""

    code = "turn_settled"


class SchemaMismatch(Defect):
    """The database has another schema than this release expects. Run `turnkeep migrate`, or upgrade."""

    code = "schema_mismatch"


class BoundaryBroken(Defect):
    """The path that serves users could see more than its user may. The server refuses to start."""

    code = "boundary_broken"
