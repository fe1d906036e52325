"""Errors: one table, one shape, nothing leaked."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.api.harness import ApiServer, Client, code_of, fake_id, settings_for
from turnkeep import errors
from turnkeep.api.http.problem_details import STATUSES, problem_response, status_of
from turnkeep.config import Settings
from turnkeep.errors import TurnkeepError
from turnkeep.providers.ports import ProviderFailed

CODES = {
    "unauthorized": 401,
    "forbidden": 403,
    "not_found": 404,
    "request_timeout": 408,
    "conversation_busy": 409,
    "idempotency_conflict": 409,
    "file_too_large": 413,
    "unsupported_media_type": 415,
    "invalid_request": 422,
    "too_many_files": 422,
    "body_too_large": 413,
    "headers_too_large": 431,
    "quota_exceeded": 429,
    "rate_limited": 429,
    "queue_full": 429,
    "unavailable": 503,
    "sandbox_unavailable": 503,
    "storage_full": 507,
}
"""As the contract lists them."""


PUBLIC_MODULES = {
    "turnkeep.errors",
    "turnkeep_client.wire.errors",
    "turnkeep.api.http.problem_details",
    "turnkeep.providers.ports",
}
"""Where errors are made that may reach a caller; others are a module's own business."""


def every_error(root: type[TurnkeepError] = TurnkeepError) -> Iterator[type[TurnkeepError]]:
    for child in root.__subclasses__():
        if child.__module__ in PUBLIC_MODULES:
            yield child
        yield from every_error(child)


class TestTheTable:
    @pytest.mark.parametrize("error", sorted(every_error(), key=str))
    def test_every_error_has_a_family_in_the_table(self, error: type[TurnkeepError]) -> None:
        assert any(parent in STATUSES for parent in error.__mro__)
        assert 400 <= status_of(error) < 600

    def test_the_codes_of_the_contract_have_their_status(self) -> None:
        classes = [value for value in vars(errors).values() if inspect.isclass(value)]
        found = {error.code: status_of(error) for error in classes if error in set(every_error())}
        assert {code: found[code] for code in CODES} == CODES

    def test_the_root_itself_has_none_so_a_new_family_is_noticed(self) -> None:
        assert TurnkeepError not in STATUSES
        assert ProviderFailed in set(every_error())


class TestMalformedRequests:
    async def test_malformed_json_is_422(self, user: Client) -> None:
        for body in (
            b"",
            b"{",
            b"[]",
            b"null",
            b'{"message": }',
            b"\xff\xfe",
            b'{"message": "\xff"}',
            b"[" * 5000,
            b"NaN",
        ):
            response = await user.post("/v1/turns", content=body, headers={"content-type": "application/json"})
            assert code_of(response) == (422, "invalid_request"), body[:20]

    async def test_an_unknown_field_is_refused_by_name(self, user: Client) -> None:
        response = await user.post("/v1/turns", json={"message": "Hi", "modle": "x"})
        assert code_of(response) == (422, "invalid_request")
        detail = response.json()["detail"]
        assert detail.startswith("Object contains unknown field `modle`. Allowed: ")
        assert "`model`" in detail
        assert (await user.read("/v1/conversations"))["data"] == []

    async def test_the_error_for_an_unknown_field_lists_those_of_its_object(self, service: Client) -> None:
        scopes = {"agents": "*", "models": "*", "features": [], "tools": []}
        response = await service.post("/v1/tokens", json={"user": "ann", "scopes": scopes})
        assert response.json()["detail"] == (
            "Object contains unknown field `tools` - at `$.scopes`. Allowed: `agents`, `models`, `features`."
        )

    async def test_the_fields_are_not_listed_where_objects_of_several_kinds_may_stand(self, user: Client) -> None:
        response = await user.post("/v1/turns", json={"message": [{"type": "text", "txt": "Hi"}]})
        assert response.json()["detail"] == "Object contains unknown field `txt` - at `$.message[0]`."

    async def test_the_error_for_an_unknown_word_lists_the_known_ones(self, user: Client) -> None:
        for body, words in (
            ({"kind": "run"}, "`chat`, `sandbox`"),
            ({"if_busy": "wait"}, "`enqueue`, `interrupt`, `reject`"),
            ({"message": [{"type": "video"}]}, "`text`, `image`, `file`"),
        ):
            response = await user.post("/v1/turns", json={"message": "Hi", **body})
            assert code_of(response) == (422, "invalid_request")
            assert response.json()["detail"].endswith(f"Allowed: {words}.")
        response = await user.get(f"/v1/turns/{fake_id('turn')}/events", params={"format": "xml"})
        assert response.json()["detail"].endswith("Allowed: `anthropic`, `native`, `openai`.")

    async def test_a_character_that_cannot_be_kept_is_refused_by_the_field_it_is_in(
        self, service: Client, user: Client
    ) -> None:
        for field, value in (("message", "a\0b"), ("metadata", {"a": "\0"}), ("workflow_id", "a\0b")):
            response = await user.post("/v1/turns", json={"message": "Hi", field: value})
            assert code_of(response) == (422, "invalid_request")
            assert response.json()["detail"].startswith(f"`{field}` holds a NUL character")
        response = await user.post("/v1/conversations", json={"metadata": {"a": "\0"}})
        assert response.json()["detail"].startswith("`metadata` holds a NUL character")
        response = await service.post("/v1/tokens", json={"user": "a\0b"})
        assert response.json()["detail"].startswith("user holds a NUL character")

    async def test_unknown_routes_and_methods_are_problems_too(self, user: Client) -> None:
        assert code_of(await user.get("/v1/nothing")) == (404, "not_found")
        assert code_of(await user.get("/%00")) == (404, "not_found")
        response = await user.delete("/v1/turns")
        assert code_of(response) == (405, "method_not_allowed")
        assert "POST" in response.headers["allow"]

    async def test_allow_lists_every_method_of_the_path(self, user: Client) -> None:
        path = f"/v1/conversations/{fake_id('conv')}"
        for method in ("POST", "OPTIONS"):
            response = await user.request(method, path)
            assert response.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PATCH"
        fixed = await user.get("/v1/conversations/import")
        assert (fixed.status_code, fixed.headers["allow"]) == (405, "OPTIONS, POST"), "not a conversation called import"

    async def test_a_path_with_doubled_or_trailing_slashes_is_not_read_as_another(self, user: Client) -> None:
        """A proxy that closes /metrics does not know what else means it."""
        for path in ("/metrics/", "//metrics", "/healthz/", "/v1/me/", "//v1//me", "/v1//orgs"):
            response = await user.get(f"{user.base_url}".rstrip("/") + path)
            assert (code_of(response), response.history) == ((404, "not_found"), []), path
            assert "without doubled or trailing slashes" in response.json()["detail"]
        assert code_of(await user.get("/v1/nothing/")) == (404, "not_found")
        assert code_of(await user.get("/healthz%0A")) == (404, "not_found")

    async def test_every_answer_has_an_id_that_the_caller_may_choose(self, user: Client) -> None:
        chosen = await user.get("/healthz", headers={"x-request-id": "my-own-id-1"})
        assert chosen.headers["x-request-id"] == "my-own-id-1"
        made = await user.get("/v1/nothing", headers={"x-request-id": "no good\tone"})
        assert made.headers["x-request-id"] == made.json()["request_id"] != "no good\tone"


class TestLargeBodies:
    @pytest.fixture
    def settings(self, tmp_path_factory: pytest.TempPathFactory) -> Settings:
        return settings_for(tmp_path_factory.mktemp("small"), max_body_bytes=2_000)

    async def test_a_declared_length_over_the_limit_is_413(self, user: Client) -> None:
        response = await user.post("/v1/turns", json={"message": "x" * 2_000})
        assert code_of(response) == (413, "body_too_large")
        assert (await user.read("/v1/conversations"))["data"] == []

    async def test_a_chunked_body_over_the_limit_is_413(self, user: Client) -> None:
        async def chunks() -> AsyncIterator[bytes]:
            yield b'{"message": "'
            for _ in range(100):
                yield b"x" * 100
            yield b'"}'

        response = await user.post("/v1/turns", content=chunks())
        assert code_of(response) == (413, "body_too_large")

    async def test_a_length_that_lies_does_not_help(self, server: ApiServer, user: Client) -> None:
        """HTTP/1.1 ends the body where the length says; the rest is not part of it, and is refused as a request."""
        host, port = server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST /v1/turns HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {user.key}\r\n"
            "content-length: 10\r\nconnection: close\r\n\r\n"
        )
        writer.write(head.encode() + b'{"message": "' + b"x" * 5_000 + b'"}')
        answer = await reader.read()
        writer.close()
        assert answer.startswith((b"HTTP/1.1 422", b"HTTP/1.1 400"))

    async def test_just_under_the_limit_is_fine(self, user: Client) -> None:
        assert (await user.post("/v1/turns", json={"message": "x" * 1_900})).status_code == 200


class TestLargeHeaders:
    async def test_headers_over_the_limit_are_431(self, user: Client) -> None:
        response = await user.get("/v1/conversations", headers={"x-long": "x" * 40_000})
        assert code_of(response) == (431, "headers_too_large")
        response = await user.get("/v1/conversations", headers={f"x-{number}": "x" for number in range(101)})
        assert code_of(response) == (431, "headers_too_large")

    async def test_an_address_over_the_limit_is_431(self, user: Client) -> None:
        response = await user.get("/v1/conversations", params={"cursor": "x" * 40_000})
        assert code_of(response) == (431, "headers_too_large")


class TestDefects:
    async def test_a_bug_says_nothing_but_its_id(
        self, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        async def broken(*_: object, **__: object) -> None:
            raise RuntimeError("the secret inside")

        monkeypatch.setattr(type(server.runtime.store), "usage", broken)
        response = await user.get("/v1/usage")
        assert code_of(response) == (500, "internal")
        assert "secret inside" not in response.text
        assert response.json()["request_id"] in response.json()["detail"]
        assert "the secret inside" in caplog.text

    def test_defects_of_our_own_are_not_explained_either(self) -> None:
        answer = problem_response(errors.BoundaryBroken("users see everything"), request_id="req_1")
        assert answer.status_code == 500
        assert b"everything" not in answer.body

    async def test_a_database_that_is_away_is_503_with_a_hint(
        self, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def away(*_: object, **__: object) -> None:
            raise errors.Unavailable("The database is away.")

        monkeypatch.setattr(type(server.runtime.store), "conversations", away)
        response = await user.get("/v1/conversations")
        assert code_of(response) == (503, "unavailable")
        assert response.headers["retry-after"] == "1"
