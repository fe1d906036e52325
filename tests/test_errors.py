"""Errors: the tree in the docstring is the tree of classes; codes are stable; each says what to do."""

import inspect
import re

import pytest

from turnkeep import errors
from turnkeep.errors import TurnkeepError
from turnkeep_client.wire import errors as wire_errors

CLASSES: list[type[TurnkeepError]] = [
    value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, TurnkeepError)
]

CODES = {
    "TurnkeepError": "internal",
    "CallerError": "invalid_request",
    "TooManyFiles": "too_many_files",
    "AlreadyDecided": "already_decided",
    "TooLarge": "body_too_large",
    "FileTooLarge": "file_too_large",
    "HeadersTooLarge": "headers_too_large",
    "RequestTimeout": "request_timeout",
    "UnsupportedMediaType": "unsupported_media_type",
    "Unauthorized": "unauthorized",
    "Forbidden": "forbidden",
    "NotFound": "not_found",
    "OutOfScope": "out_of_scope",
    "Conflict": "conflict",
    "ConversationBusy": "conversation_busy",
    "IdempotencyConflict": "idempotency_conflict",
    "LimitReached": "limit_reached",
    "QuotaExceeded": "quota_exceeded",
    "RateLimited": "rate_limited",
    "QueueFull": "queue_full",
    "WorldError": "unavailable",
    "SandboxUnavailable": "sandbox_unavailable",
    "StorageFull": "storage_full",
    "Fenced": "fenced",
    "LeaseLost": "lease_lost",
    "TurnSettled": "turn_settled",
    "SchemaMismatch": "schema_mismatch",
    "BoundaryBroken": "boundary_broken",
}
"""Clients depend on these: a line may be added, none changed."""


def drawn_tree(drawing: str | None) -> dict[str, str | None]:
    """Each name in the docstring's drawing, with the name above it."""
    parents: dict[str, str | None] = {}
    above: list[str] = []
    for line in (drawing or "").splitlines():
        match = re.match(r"^    ((?:[│ ]   )*(?:[├└]── )?)([A-Z]\w+)", line)
        if match:
            depth = len(match[1]) // 4
            above[depth:] = [match[2]]
            parents[match[2]] = above[depth - 1] if depth else None
    return parents


class TestTheTree:
    def test_the_drawing_is_the_truth(self) -> None:
        real = {cls.__name__: cls.__bases__[0].__name__ if cls is not TurnkeepError else None for cls in CLASSES}
        assert drawn_tree(wire_errors.__doc__) | drawn_tree(errors.__doc__) == real

    def test_the_public_part_is_drawn_whole_where_it_is_defined(self) -> None:
        public = {cls.__name__ for cls in CLASSES if cls.__module__ == wire_errors.__name__}
        assert set(drawn_tree(wire_errors.__doc__)) == public

    def test_each_has_one_parent(self) -> None:
        assert all(len(cls.__bases__) == 1 for cls in CLASSES)

    def test_each_belongs_to_one_of_the_families(self) -> None:
        families = {child.__name__ for child in TurnkeepError.__subclasses__()}
        assert families == {"CallerError", "WorldError", "Fenced", "Defect"}


class TestEachError:
    @pytest.mark.parametrize("cls", CLASSES)
    def test_it_says_what_it_means(self, cls: type[TurnkeepError]) -> None:
        assert cls.__doc__
        assert inspect.getdoc(cls.__base__) != cls.__doc__
        assert cls.__doc__.strip().endswith(".")

    def test_codes_are_those_that_clients_know(self) -> None:
        own = {cls.__name__: cls.code for cls in CLASSES if "code" in vars(cls)}
        assert own == CODES

    def test_no_two_share_a_code_of_their_own(self) -> None:
        assert len(set(CODES.values())) == len(CODES)

    def test_the_detail_is_the_message(self) -> None:
        error = errors.NotFound("No such conversation.")
        assert str(error) == error.detail == "No such conversation."

    def test_busy_names_the_turn(self) -> None:
        busy = errors.ConversationBusy("turn_1", 5)
        assert (busy.turn_id, busy.started_at) == ("turn_1", 5)
        assert "turn_1" in busy.detail
