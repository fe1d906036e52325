"""A problem of the server becomes the error that the server raised; anything else is told by its status."""

import msgspec
import pytest

from tests.api.test_errors import every_error
from turnkeep.api.http.problem_details import problem_response, status_of
from turnkeep.errors import (
    AlreadyDecided,
    ConversationBusy,
    Defect,
    ExternalIdTaken,
    IdempotencyConflict,
    InvalidRequest,
    NotFound,
    RateLimited,
    TurnkeepError,
    Unavailable,
    UnsupportedOption,
)
from turnkeep.ids import ConversationId
from turnkeep_client.errors import Refused, error_of, retry_after

PLAIN = [
    error
    for error in every_error()
    if error.__module__ in {"turnkeep.errors", "turnkeep_client.wire.errors"}
    and error
    not in {AlreadyDecided, ConversationBusy, ExternalIdTaken, IdempotencyConflict, RateLimited, UnsupportedOption}
    and status_of(error) != 500
]


def through(error: TurnkeepError) -> TurnkeepError:
    """The error after its way over the wire."""
    answer = problem_response(error, request_id="req_1")
    return error_of(answer.status_code, answer.headers, bytes(answer.body))


@pytest.mark.parametrize("error", PLAIN, ids=lambda error: error.__name__)
def test_every_error_arrives_with_its_code_and_its_words(error: type[TurnkeepError]) -> None:
    arrived = through(error("These are the words."))
    assert (arrived.code, arrived.detail) == (error.code, "These are the words.")
    assert issubclass(type(arrived), error) or issubclass(error, type(arrived))


def test_those_that_carry_more_arrive_with_it() -> None:
    busy = through(ConversationBusy("turn_1", 7))
    assert isinstance(busy, ConversationBusy)
    assert (busy.turn_id, busy.started_at) == ("turn_1", 7)
    waiting = through(ConversationBusy("turn_1", 7, waiting_for="approval"))
    assert isinstance(waiting, ConversationBusy)
    assert waiting.waiting_for == "approval"
    decided = through(AlreadyDecided("These are the words.", turn_id="turn_1", decision="deny"))
    assert isinstance(decided, AlreadyDecided)
    assert (decided.turn_id, decided.decision) == ("turn_1", "deny")
    conflict = through(IdempotencyConflict("turn_2"))
    assert isinstance(conflict, IdempotencyConflict)
    assert conflict.turn_id == "turn_2"
    limited = through(RateLimited("Slowly.", retry_after_seconds=9))
    assert isinstance(limited, RateLimited)
    assert limited.retry_after_seconds == 9
    assert "conv_1" in through(ExternalIdTaken(ConversationId("conv_1"))).detail
    assert isinstance(through(UnsupportedOption("Leave it out.", option="seed")), InvalidRequest)


def test_a_defect_of_the_server_is_one_here() -> None:
    assert isinstance(through(Defect("secret")), Defect)
    assert "req_1" in through(Defect("secret")).detail


@pytest.mark.parametrize("status,kind", [(404, NotFound), (502, Unavailable), (500, Defect), (418, Refused)])
def test_what_is_not_from_turnkeep_is_told_by_its_status(status: int, kind: type[TurnkeepError]) -> None:
    assert type(error_of(status, {}, b"<html>nginx</html>")) is kind


def test_a_code_of_a_later_server_is_kept() -> None:
    body = msgspec.json.encode({"code": "too_sunny", "detail": "Come back at night."})
    error = error_of(422, {}, body)
    assert isinstance(error, Refused)
    assert (error.server_code, error.detail) == ("too_sunny", "Come back at night.")


def test_a_wrong_value_is_an_invalid_request() -> None:
    assert type(through(InvalidRequest("No."))) is InvalidRequest


@pytest.mark.parametrize("value,seconds", [("3", 3.0), ("", None), ("Wed, 21 Oct 2026 07:28:00 GMT", None)])
def test_how_long_to_wait(value: str, seconds: float | None) -> None:
    assert retry_after({"retry-after": value}) == seconds
