"""Signed addresses of streams: for one turn, for a short time, and without a key."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, fake_id
from tests.api.test_sessions import sign_in
from turnkeep.clock import system_clock
from turnkeep.providers.scripted import Until
from turnkeep_client.wire.sse import SseParser


async def made(client: Client, turn_id: str, **body: Any) -> str:
    answer = await client.post(f"/v1/turns/{turn_id}/stream-url", json=body)
    assert answer.status_code == 201, answer.text
    assert set(answer.json()) == {"url", "expires_at"}
    return str(answer.json()["url"])


async def opened(url: str, **headers: str) -> httpx.Response:
    """The address, as a browser opens it: without a key."""
    async with httpx.AsyncClient(trust_env=False, timeout=60) as browser:
        return await browser.get(url, headers={"accept": "text/event-stream", **headers})


def names(response: httpx.Response) -> list[str]:
    return [frame.event for frame in SseParser().feed(response.content)]


@both
class TestAStreamAddress:
    async def test_is_the_stream_of_the_turn_without_a_key(self, server: ApiServer, user: Client) -> None:
        turn = (await user.ask())["turn"]["id"]
        url = await made(user, turn)
        assert url.startswith(f"{server.url}/v1/turns/{turn}/stream?")
        answer = await opened(url)
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        whole = await user.get(f"/v1/turns/{turn}/events", headers={"accept": "text/event-stream"})
        assert answer.content == whole.content
        assert names(answer)[0] == "turn"
        assert names(answer)[-1] == "result"

    async def test_goes_on_where_a_browser_was(self, user: Client) -> None:
        turn = (await user.ask())["turn"]["id"]
        url = await made(user, turn)
        assert "turn" not in names(await opened(url, **{"last-event-id": "1"}))
        last = SseParser().feed((await opened(url)).content)[-1].id
        assert (await opened(url, **{"last-event-id": last})).status_code == 204
        assert "turn" not in names(await opened(await made(user, turn, after="1")))
        assert (await opened(url, **{"last-event-id": "x"})).status_code == 422

    async def test_keeps_the_turn_attached_while_it_is_open(self, server: ApiServer, user: Client) -> None:
        gate = asyncio.Event()
        server.scripts.say("One ", Until(gate.wait), "two.")
        started = (await user.post("/v1/turns", json={"message": "Go", "background": True})).json()
        reading = asyncio.create_task(opened(await made(user, started["turn_id"])))
        gate.set()
        assert names(await reading)[-1] == "result"

    async def test_may_have_another_format(self, user: Client) -> None:
        turn = (await user.ask())["turn"]["id"]
        assert b"[DONE]" in (await opened(await made(user, turn, format="openai"))).content


class TestIsRefused:
    async def test_for_another_turn_after_its_time_and_with_any_change(self, server: ApiServer, user: Client) -> None:
        first, second = [(await user.ask())["turn"]["id"] for _ in range(2)]
        url = await made(user, first)
        for other in (
            url.replace(first, second),
            url.replace("format=native", "format=openai"),
            url.replace("expires=", "expires=9"),
            f"{url}x",
            url.partition("&signature")[0],
            url.replace("/stream?", "/events?"),
        ):
            assert other != url
            assert (await opened(other)).status_code in {401, 422}, other
        assert (await opened(await made(user, first, ttl_seconds=1))).status_code == 200
        expired = server.runtime.addresses.sign(
            "GET",
            f"/v1/turns/{first}/stream",
            org_id=server.runtime.home_org,
            expires_at=system_clock() - 1,
            facts={"ws": "ws_1", "user": "", "key": "", "format": "native", "after": ""},
        )
        assert (await opened(server.url + expired)).status_code == 401

    async def test_when_the_user_is_disabled_or_the_key_revoked(self, server: ApiServer, service: Client) -> None:
        ann = await server.user(service, "ann")
        url = await made(ann, (await ann.ask())["turn"]["id"])
        await service.patch("/v1/users/ann", json={"is_disabled": True})
        assert (await opened(url)).status_code == 403
        key = (await service.post("/v1/keys", json={"name": "K"})).json()
        shop = await server.client(key["key"])
        url = await made(shop, (await shop.ask())["turn"]["id"])
        assert (await opened(url)).status_code == 200
        await service.delete(f"/v1/keys/{key['id']}")
        assert (await opened(url)).status_code == 401

    async def test_after_the_end_of_the_token_with_which_it_was_made(self, server: ApiServer, service: Client) -> None:
        token = (await service.post("/v1/tokens", json={"user": "ann", "ttl_seconds": 60})).json()
        ann = await server.client(token["token"])
        path = f"/v1/turns/{(await ann.ask())['turn']['id']}/stream-url"
        long = (await ann.post(path, json={"ttl_seconds": 3_600})).json()
        assert long["expires_at"] == token["expires_at"]
        assert f"expires={token['expires_at']}&" in long["url"]
        short = (await ann.post(path, json={"ttl_seconds": 1})).json()
        assert short["expires_at"] < token["expires_at"]

    @both
    async def test_when_the_session_has_ended_in_which_it_was_made(self, server: ApiServer) -> None:
        first, second = await sign_in(server), await sign_in(server)
        turn = (await first.ask())["turn"]["id"]
        of_first, of_second = await made(first, turn), await made(second, turn)
        assert [(await opened(url)).status_code for url in (of_first, of_second)] == [200, 200]
        assert (await first.delete(f"/v1/me/sessions/{(await second.read('/v1/me'))['session']['id']}")).is_success
        assert [(await opened(url)).status_code for url in (of_first, of_second)] == [200, 401]

    async def test_to_others_and_when_the_conversation_is_gone(
        self, server: ApiServer, service: Client, user: Client
    ) -> None:
        answer = await user.ask()
        path = f"/v1/turns/{answer['turn']['id']}/stream-url"
        mallory = await server.user(service, "mallory")
        assert (await mallory.post(path)).status_code == 404
        assert (await user.post(f"/v1/turns/{fake_id('turn')}/stream-url")).status_code == 404
        url = await made(user, answer["turn"]["id"])
        await user.delete(f"/v1/conversations/{answer['conversation_id']}")
        assert (await opened(url)).status_code == 404

    @pytest.mark.parametrize("body", [{"ttl_seconds": 0}, {"ttl_seconds": 3_601}, {"format": "xml"}, {"after": "x"}])
    async def test_for_what_makes_no_sense(self, user: Client, body: dict[str, Any]) -> None:
        turn = (await user.ask())["turn"]["id"]
        assert (await user.post(f"/v1/turns/{turn}/stream-url", json=body)).status_code == 422


async def test_a_user_of_a_service_key_reads_only_what_is_theirs(server: ApiServer, service: Client) -> None:
    """The address is for the user, not for the key that acts for them."""
    ann = await server.client(service.key, turnkeep_user="ann")
    url = await made(ann, (await ann.ask())["turn"]["id"])
    assert (await opened(url)).status_code == 200
