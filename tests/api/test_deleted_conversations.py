"""A conversation that is deleted while a client waits for one of its turns: the client still gets the outcome."""

import asyncio

import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, Json, code_of
from tests.api.test_turns import ModelPause


async def a_waiter(server: ApiServer, user: Client, **headers: str) -> tuple["asyncio.Task[Json]", str, str]:
    """Someone who waits for a turn that does not end by itself, the conversation's path and the turn's id."""
    pause = ModelPause()
    server.scripts.say("Half of ", pause())
    asking = asyncio.create_task(user.ask(headers=headers))
    await pause.reached.wait()
    [conversation] = (await user.read("/v1/conversations"))["data"]
    return asking, f"/v1/conversations/{conversation['id']}", conversation["running_turn"]["id"]


def assert_cancelled(answer: Json) -> None:
    assert answer["turn"]["status"] == "cancelled"
    assert answer["turn"]["error"]["code"] == "cancelled"


class TestWaiters:
    @both
    async def test_of_a_running_turn_get_it_cancelled_with_what_was_said(self, server: ApiServer, user: Client) -> None:
        asking, path, turn_id = await a_waiter(server, user)
        assert (await user.delete(path)).status_code == 204
        answer = await asking
        assert_cancelled(answer)
        assert answer["message"]["content"] == [{"type": "text", "text": "Half of "}]
        assert code_of(await user.get(f"/v1/turns/{turn_id}")) == (404, "not_found"), "no other request sees it"
        assert code_of(await user.get(f"{path}/messages")) == (404, "not_found")

    @both
    async def test_of_a_queued_turn_get_it_cancelled(self, server: ApiServer, service: Client, user: Client) -> None:
        asking, path, _ = await a_waiter(server, user)
        waiting = asyncio.create_task(user.ask("And then?", conversation_id=path.rpartition("/")[2], if_busy="enqueue"))
        async with asyncio.timeout(30):
            while "And then?" not in (await service.get(f"{path}/trace")).text:  # noqa: ASYNC110 - it is asked over HTTP
                await asyncio.sleep(0.01)
        assert (await user.delete(path)).status_code == 204
        assert_cancelled(await waiting)
        assert_cancelled(await asking)

    @both
    async def test_of_a_regenerated_and_of_an_edited_turn_get_it_cancelled(
        self, server: ApiServer, user: Client
    ) -> None:
        for verb, body in (("regenerate", {}), ("edit", {"message": "Or else?"})):
            first = await user.ask()
            path = f"/v1/conversations/{first['conversation_id']}"
            pause = ModelPause()
            server.scripts.say(pause())
            asking = asyncio.create_task(user.post(f"{path}/turns/{first['turn']['id']}/{verb}", json=body))
            await pause.reached.wait()
            assert (await user.delete(path)).status_code == 204
            answer = await asking
            assert answer.status_code == 200, answer.text
            assert_cancelled(answer.json())

    @both
    async def test_who_asked_for_a_stop_gets_the_turn(
        self, server: ApiServer, user: Client, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asking, path, turn_id = await a_waiter(server, user)
        request_cancel = server.runtime.store.request_cancel

        async def asked_then_deleted(*given: Json) -> Json:
            turn = await request_cancel(*given)
            assert (await user.delete(path)).status_code == 204
            return turn

        monkeypatch.setattr(server.runtime.store, "request_cancel", asked_then_deleted)
        stopped = await user.post(f"/v1/turns/{turn_id}/cancel")
        assert stopped.status_code == 200, stopped.text
        assert stopped.json()["status"] == "cancelled"
        assert_cancelled(await asking)

    async def test_who_repeats_the_request_later_sees_what_is_deleted_no_more(
        self, server: ApiServer, user: Client
    ) -> None:
        asking, path, _ = await a_waiter(server, user, **{"idempotency-key": "once"})
        assert (await user.delete(path)).status_code == 204
        assert_cancelled(await asking)
        for accept in ("application/json", "text/event-stream"):
            headers = {"idempotency-key": "once", "accept": accept}
            again = await user.post("/v1/turns", json={"message": "Hello?"}, headers=headers)
            assert code_of(again) == (404, "not_found"), accept
