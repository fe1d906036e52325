"""Logs: JSON lines with turn ids and without secrets. Traces: spans, if an exporter is configured."""

import asyncio
import io
import json
import logging
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import suppress
from typing import TextIO

import hypothesis
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.api.harness import OPERATOR_KEY, STREAM, ApiServer
from tests.property_tests import examples
from turnkeep.api.identity.service_keys import LOCAL_KEY, SECRET_KEYS, SigninLinks
from turnkeep.api.telemetry.logs import _SHAPES, JsonFormatter, _may_have_shapes, configure_logging
from turnkeep.config import Settings
from turnkeep.errors import StorageFull
from turnkeep.providers.scripted import Fail


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """What the server writes to standard error."""
    root = logging.getLogger()
    before, level = root.handlers, root.level
    stream = io.StringIO()
    configure_logging("debug", secrets=[OPERATOR_KEY], stream=stream)
    yield stream
    root.handlers = before
    root.setLevel(level)


def written_to(log: io.StringIO) -> str:
    """All lines so far, also those that wait for others."""
    for handler in logging.getLogger().handlers:
        handler.flush()
    return log.getvalue()


def messages(log: io.StringIO) -> list[str]:
    """What this server has written so far."""
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    return [line["message"] for line in lines if line["logger"].startswith("turnkeep")]


class TestLinesThatWaitForOthers:
    async def test_are_written_together_and_soon(self, log: io.StringIO) -> None:
        for number in range(3):
            logging.getLogger("turnkeep.http").info("request %d", number)
        assert messages(log) == []
        async with asyncio.timeout(30):
            while not messages(log):  # noqa: ASYNC110 - a stream of text has only its text
                await asyncio.sleep(0.01)
        assert messages(log) == ["request 0", "request 1", "request 2"]

    @pytest.mark.parametrize("name, level", [("turnkeep.http", logging.ERROR), ("turnkeep.audit", logging.INFO)])
    async def test_are_written_before_one_that_must_not_be_lost(self, log: io.StringIO, name: str, level: int) -> None:
        logging.getLogger("turnkeep.http").info("first")
        logging.getLogger(name).log(level, "second")
        assert messages(log) == ["first", "second"]

    async def test_are_not_too_many(self, log: io.StringIO) -> None:
        logging.getLogger("turnkeep.http").info("x" * 70_000)
        assert messages(log) == ["x" * 70_000]

    async def test_are_written_when_the_process_ends(self, log: io.StringIO) -> None:
        logging.getLogger("turnkeep.http").info("last words")
        logging.shutdown([weakref.ref(handler) for handler in logging.getLogger().handlers])
        assert messages(log) == ["last words"]

    def test_do_not_exist_outside_of_an_event_loop(self, log: io.StringIO) -> None:
        logging.getLogger("turnkeep.http").info("at once")
        assert messages(log) == ["at once"]


class TestALineThatCannotBeWritten:
    def test_is_dropped_but_raises_if_it_is_of_the_audit_log(self, log: io.StringIO) -> None:
        log.close()
        with pytest.raises(ValueError, match="closed file"):
            logging.getLogger("turnkeep.audit").info("turn.succeeded")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(logging, "raiseExceptions", False)
            logging.getLogger("turnkeep.http").info("request")


class TestAPipeThatIsFull:
    """Standard error whose reader is slow. It blocks as pipes do, or another process has made it one that does not."""

    @pytest.fixture(params=[True, False], ids=["blocking", "not blocking"])
    def ends(self, request: pytest.FixtureRequest) -> Iterator[tuple[int, TextIO]]:
        reader, writer = os.pipe()
        os.set_blocking(writer, request.param)
        os.set_blocking(reader, False)
        root = logging.getLogger()
        before, level = root.handlers, root.level
        with open(writer, "w", encoding="utf-8") as stream:
            configure_logging("debug", stream=stream)
            yield reader, stream
            root.handlers = before
            root.setLevel(level)
        os.close(reader)

    def read(self, reader: int) -> str:
        with suppress(BlockingIOError):
            return os.read(reader, 1 << 22).decode()
        return ""

    def numbers(self, text: str) -> list[str]:
        """The first word of each line of this server."""
        lines = [json.loads(line) for line in text.splitlines()]
        return [line["message"].split()[0] for line in lines if line["logger"].startswith("turnkeep")]

    async def test_gets_every_line_once_and_later(self, ends: tuple[int, TextIO]) -> None:
        reader, _ = ends
        for number in range(40):
            logging.getLogger("turnkeep.http").error("%d %s", number, "x" * 10_000)
        text = ""
        async with asyncio.timeout(30):
            while '"39 xxx' not in text or not text.endswith("\n"):
                text += self.read(reader)
                await asyncio.sleep(0.01)
        assert self.numbers(text) == [str(number) for number in range(40)]

    def test_gets_the_rest_when_the_process_ends(self, ends: tuple[int, TextIO]) -> None:
        reader, _ = ends
        for number in range(40):
            logging.getLogger("turnkeep.http").error("%d %s", number, "x" * 10_000)
        text: list[str] = []

        def take() -> None:
            while "".join(text).count("\n") < 40:
                text.append(self.read(reader))

        taking = threading.Thread(target=take)
        taking.start()
        logging.shutdown([weakref.ref(handler) for handler in logging.getLogger().handlers])
        taking.join(timeout=30)
        assert self.numbers("".join(text)) == [str(number) for number in range(40)]

    def test_says_how_many_lines_were_dropped(self, ends: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch) -> None:
        reader, _ = ends
        monkeypatch.setattr("turnkeep.api.telemetry.logs.BACKLOG_BYTES", 100_000)
        for number in range(40):
            logging.getLogger("turnkeep.http").error("%d %s", number, "x" * 10_000)
        text = ""
        for _ in range(40):
            text += self.read(reader)
            for handler in logging.getLogger().handlers:
                handler.flush()
        *kept, last = (json.loads(line)["message"] for line in text.splitlines())
        assert last == f"{40 - len(kept)} lines of the log were dropped: nobody read standard error."
        assert [message.split()[0] for message in kept] == [str(number) for number in range(len(kept))]

    @pytest.mark.parametrize("has_loop", [True, False])
    def test_is_tried_again_after_a_thread_has_filled_it(
        self, ends: tuple[int, TextIO], monkeypatch: pytest.MonkeyPatch, has_loop: bool
    ) -> None:
        """A thread has no event loop that writes its lines later."""
        reader, _ = ends
        monkeypatch.setattr("turnkeep.api.telemetry.logs.BACKLOG_BYTES", 100_000)

        def fill() -> None:
            for number in range(40):
                logging.getLogger("turnkeep.http").error("%d %s", number, "x" * 10_000)

        async def read_on(text: str = "") -> None:
            async with asyncio.timeout(30):
                while "were dropped" not in text:
                    logging.getLogger("turnkeep.http").error("later")
                    text += self.read(reader)
                    await asyncio.sleep(0.01)

        filling = threading.Thread(target=fill)
        filling.start()
        filling.join()
        if has_loop:
            asyncio.run(read_on())
            return
        text = ""
        for _ in range(40):
            logging.getLogger("turnkeep.http").error("later")
            text += self.read(reader)
        assert "were dropped" in text
        assert self.numbers(text)[-1] == "later"

    def test_takes_no_line_of_the_audit_log_that_it_cannot_write(self, ends: tuple[int, TextIO]) -> None:
        reader, _ = ends
        for _ in range(10):
            logging.getLogger("turnkeep.http").error("x" * 10_000)
        with pytest.raises(BlockingIOError):
            logging.getLogger("turnkeep.audit").info("turn.succeeded")
        while self.read(reader):
            for handler in logging.getLogger().handlers:
                handler.flush()
        logging.getLogger("turnkeep.audit").info("turn.succeeded")
        assert self.numbers(self.read(reader)) == ["turn.succeeded"], "it is written once"


class TestSecrets:
    async def test_no_key_token_cookie_or_message_is_ever_written(
        self, log: io.StringIO, server: ApiServer, settings: Settings
    ) -> None:
        service = await server.tenant()
        user = await server.user(service)
        made = (await service.post("/v1/keys", json={"name": "k"})).json()["key"]
        link = SigninLinks.of(settings).make()
        browser = await server.client(None)
        cookie = (await browser.get("/signin", params={"token": link})).headers["set-cookie"].partition(";")[0]
        server.scripts.say("private answer", Fail(RuntimeError(f"Bearer {made} failed at postgresql://me:pw1234@db/x")))
        await user.post("/v1/turns", json={"message": "private question"}, headers=STREAM)
        await service.get("/v1/conversations", params={"key": service.key})
        await (await server.client(made + "x")).get("/v1/conversations")
        await browser.post("/v1/turns", json={"message": "?"}, headers={"origin": server.url})
        written = written_to(log)
        secrets = {
            "operator": OPERATOR_KEY,
            "service": service.key,
            "token": user.key,
            "made": made,
            "link": link,
            "cookie": cookie.partition("=")[2],
            "local": (settings.data_dir / LOCAL_KEY).read_text(),
            "signing": (settings.data_dir / SECRET_KEYS).read_text(),
            "password": "pw1234",
            "question": "private question",
            "answer": "private answer",
        }
        assert [name for name, secret in secrets.items() if secret in written] == []

    def test_secrets_inside_messages_are_masked_by_their_shape(self) -> None:
        formatter = JsonFormatter(["exactly-this"])
        text = "exactly-this tk_0123456789abcdefgh tku_abcdefghijklmnopqrst.uvw Bearer abc sk-0123456789abcdefXYZ"
        record = logging.LogRecord("x", logging.INFO, "", 0, text, (), None)
        assert json.loads(formatter.format(record))["message"] == "*** *** *** *** ***"

    @hypothesis.settings(max_examples=examples(300, at_night=5_000), deadline=None)
    @given(st.text(max_size=5), st.from_regex(r"(tk[up]?_|(?i:bearer) |db://a:|sk-)[A-Za-z0-9]{16,20}(@h)?"), st.text())
    def test_every_shape_is_looked_for(self, before: str, secret: str, after: str) -> None:
        """Most lines have none, which a short look tells."""
        text = f"{before} {secret} {after}"
        assert _may_have_shapes(text) or _SHAPES.search(text) is None

    def test_a_secret_of_a_few_letters_is_none(self) -> None:
        record = logging.LogRecord("x", logging.INFO, "", 0, "six exits", (), None)
        assert json.loads(JsonFormatter(["x", "s", '"']).format(record))["message"] == "six exits"


class TestLines:
    async def test_each_line_is_json_and_turns_are_named(self, log: io.StringIO, server: ApiServer) -> None:
        user = await server.user(await server.tenant())
        answer = await user.ask()
        lines = [json.loads(line) for line in written_to(log).splitlines()]
        assert all({"ts", "level", "logger", "message"} <= set(line) for line in lines)
        about = [line for line in lines if line.get("turn_id") == answer["turn"]["id"]]
        assert {"turn began", "turn ended", "request"} <= {line["message"] for line in about}
        request = next(line for line in about if line["message"] == "request")
        assert (request["route"], request["status"]) == ("/v1/turns", 200)
        assert request["request_id"].startswith("req_")

    async def test_an_erasure_that_waits_says_why(
        self, log: io.StringIO, server: ApiServer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async def full(*, most_bytes: int | None = None) -> bool:
            raise StorageFull("There is too little room.")

        user = await server.user(await server.tenant())
        answer = await user.ask("Hello")
        monkeypatch.setattr(server.runtime.store, "scrub", full)
        refused = await user.post(f"/v1/conversations/{answer['conversation_id']}/erase")
        assert (refused.status_code, refused.json()["code"]) == (507, "storage_full")
        lines = [json.loads(line) for line in written_to(log).splitlines()]
        [line] = [line for line in lines if line["message"] == "erasure delayed"]
        assert (line["level"], line["reason"]) == ("warning", "There is too little room.")
        assert line["erasure_id"].startswith("erasure_")
