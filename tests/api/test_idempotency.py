"""The hash of a request does not change from one version to the next."""

import msgspec

from turnkeep.api.http.idempotency import hash_of
from turnkeep_client.wire import NewTurn

ASKED = b'{"message": "Hello?", "metadata": {"b": 1, "a": [true, null]}}'


def told(body: bytes) -> str:
    return hash_of("/v1/turns", msgspec.to_builtins(msgspec.json.decode(body, type=NewTurn)))


class TestTheHash:
    def test_of_a_request_is_the_one_that_is_stored(self) -> None:
        """If this fails, turns that were asked before an upgrade are not recognised after it."""
        assert told(ASKED) == "b0a7d58db2c0d259ee8861b944db57605ea9e49b568180fc5660705b47aa61e2"

    def test_does_not_tell_null_from_nothing_or_one_order_from_another(self) -> None:
        assert told(b'{"metadata": {"a": [true, null], "b": 1}, "kind": null, "message": "Hello?"}') == told(ASKED)

    def test_tells_other_words_and_other_routes(self) -> None:
        assert told(b'{"message": "Hello."}') != told(b'{"message": "Hello?"}')
        assert hash_of("/v1/turns?format=openai", {}) != hash_of("/v1/turns", {})
