"""Webhooks: endpoints of the host hear of what happens, and can prove who tells them."""

import asyncio
import base64
import json
import re
import socket
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from aiohttp import web
from msgspec import structs
from standardwebhooks import Webhook as StandardWebhook
from standardwebhooks import WebhookVerificationError

from tests.api.conftest import both
from tests.api.harness import ApiServer, Client, code_of, fake_id, settings_for
from tests.webhook_endpoint import Received, WebhookEndpoint
from turnkeep.config import Settings
from turnkeep.model.outbox import webhook_headers, webhook_secret

TURNS = ["turn.succeeded", "turn.failed", "turn.cancelled"]


@pytest.fixture
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> Settings:
    """The endpoints of these tests are on this machine."""
    options: dict[str, Any] = {"allow_private_addresses": True, "sweep_seconds": 0.1}
    if getattr(request, "param", "sqlite") == "postgres":
        options["database_url"] = request.getfixturevalue("api_database")
    return settings_for(tmp_path, **options)


@pytest.fixture
async def receiver() -> AsyncIterator[WebhookEndpoint]:
    async with WebhookEndpoint.start() as running:
        yield running


async def made(client: Client, url: str, events: list[str] | None = None, **fields: Any) -> Any:
    response = await client.post("/v1/webhooks", json={"url": url, "events": events or TURNS, **fields})
    assert response.status_code == 201, response.text
    return response.json()


async def until_delivered(client: Client, webhook: Any, *, status: str = "delivered") -> Any:
    """The deliveries, once all of them have come to that status."""
    async with asyncio.timeout(60):
        while True:
            found = (await client.read(f"/v1/webhooks/{webhook['id']}/deliveries"))["data"]
            if found and {each["status"] for each in found} == {status}:
                return found
            await asyncio.sleep(0.05)


async def until_failed(client: Client, webhook: Any) -> Any:
    """The newest delivery, once an attempt has failed."""
    async with asyncio.timeout(60):
        while True:
            found = (await client.read(f"/v1/webhooks/{webhook['id']}/deliveries"))["data"]
            if found and found[0]["error"] is not None:
                return found[0]
            await asyncio.sleep(0.05)


@both
class TestAnEndpoint:
    async def test_hears_of_the_end_of_a_turn_and_can_check_the_signature(
        self, service: Client, user: Client, receiver: WebhookEndpoint
    ) -> None:
        webhook = await made(service, receiver.url)
        answer = await user.ask("a question with secret words")
        [received] = await receiver.until(1)
        body = StandardWebhook(webhook["secret"]).verify(received.body, received.headers)
        assert received.headers["content-type"] == "application/json"
        assert body["type"] == "turn.succeeded"
        assert body["timestamp"].endswith("Z")
        data = body["data"]
        assert (data["turn_id"], data["conversation_id"]) == (answer["turn"]["id"], answer["conversation_id"])
        assert (data["status"], data["user"]["external_id"]) == ("succeeded", "ann")
        assert b"secret words" not in received.body
        [delivery] = await until_delivered(service, webhook)
        assert (delivery["id"], delivery["attempts"], delivery["response_status"]) == (received.id, 1, 204)
        assert delivery["payload"] == body

    async def test_that_checks_with_another_secret_or_a_changed_body_refuses_it(
        self, service: Client, user: Client, receiver: WebhookEndpoint
    ) -> None:
        webhook = await made(service, receiver.url)
        await user.ask()
        [received] = await receiver.until(1)
        other = StandardWebhook(webhook_secret(b"x" * 32))
        for library, body in ((other, received.body), (StandardWebhook(webhook["secret"]), received.body + b" ")):
            with pytest.raises(WebhookVerificationError):
                library.verify(body, received.headers)

    async def test_hears_of_conversations_and_files(
        self, service: Client, user: Client, receiver: WebhookEndpoint
    ) -> None:
        await made(service, receiver.url, ["conversation.created", "file.created"])
        conversation = (await user.post("/v1/conversations", json={"title": "A secret title"})).json()["id"]
        sent = await user.post(f"/v1/conversations/{conversation}/files", files={"file": ("secret.txt", b"x")})
        assert sent.status_code == 201
        found = {each.type: json.loads(each.body)["data"] for each in await receiver.until(2)}
        assert found["conversation.created"]["conversation_id"] == conversation
        assert found["file.created"]["file_id"] == sent.json()["data"][0]["id"]
        assert all(b"secret" not in each.body for each in receiver.received)

    async def test_that_fails_gets_it_again_under_the_same_id(
        self, service: Client, user: Client, receiver: WebhookEndpoint
    ) -> None:
        async def refuse_first(received: Received) -> web.Response:
            is_first = len(receiver.received) == 1
            return web.Response(status=503, text="Come back later.") if is_first else web.Response()

        receiver.answer = refuse_first
        webhook = await made(service, receiver.url)
        await user.ask()
        await receiver.until(1)
        failed = await until_failed(service, webhook)
        assert failed["error"] == "HTTP 503: Come back later."
        assert failed["next_attempt_at"] > failed["last_attempt_at"]
        first, second = await receiver.until(2)
        assert first.id == second.id
        assert first.body == second.body
        [delivery] = await until_delivered(service, webhook)
        assert (delivery["attempts"], delivery["error"]) == (2, None)

    async def test_that_is_gone_is_not_called_again(
        self, service: Client, user: Client, receiver: WebhookEndpoint
    ) -> None:
        async def gone(_: Received) -> web.Response:
            return web.Response(status=410)

        receiver.answer = gone
        webhook = await made(service, receiver.url)
        await user.ask()
        await until_delivered(service, webhook, status="failed")
        shown = await service.read(f"/v1/webhooks/{webhook['id']}")
        assert not shown["is_enabled"]
        assert "410" in shown["disabled_reason"]

    async def test_that_redirects_is_not_followed(
        self, service: Client, user: Client, receiver: WebhookEndpoint
    ) -> None:
        async def redirect(_: Received) -> web.Response:
            return web.Response(status=307, headers={"location": "/elsewhere"})

        receiver.answer = redirect
        webhook = await made(service, receiver.url)
        await user.ask()
        await receiver.until(1)
        failed = await until_failed(service, webhook)
        assert "redirects are not followed" in failed["error"]
        assert len(receiver.received) == 1

    async def test_gets_a_delivery_again_on_request(
        self, service: Client, user: Client, receiver: WebhookEndpoint
    ) -> None:
        webhook = await made(service, receiver.url)
        await user.ask()
        [delivery] = await until_delivered(service, webhook)
        path = f"/v1/webhooks/{webhook['id']}/deliveries/{delivery['id']}/redeliver"
        again = await service.post(path)
        assert (again.status_code, again.json()["status"]) == (202, "pending")
        first, second = await receiver.until(2)
        assert (first.id, first.body) == (second.id, second.body)
        StandardWebhook(webhook["secret"]).verify(second.body, second.headers)


class TestTheRoutes:
    async def test_show_the_secret_once_and_store_it_sealed(
        self, server: ApiServer, service: Client, receiver: WebhookEndpoint
    ) -> None:
        webhook = await made(service, receiver.url)
        secret = webhook.pop("secret")
        assert secret.startswith("whsec_")
        assert len(base64.b64decode(secret.removeprefix("whsec_"))) == 32
        assert await service.read(f"/v1/webhooks/{webhook['id']}") == webhook
        assert await service.read("/v1/webhooks") == {"data": [webhook], "next_cursor": None}
        changed = await service.patch(f"/v1/webhooks/{webhook['id']}", json={"is_enabled": False})
        assert "secret" not in changed.json()
        stored = list(Path(server.runtime.settings.data_dir).glob("turnkeep.db*"))
        assert all(secret.encode() not in path.read_bytes() for path in stored)

    async def test_change_and_delete(self, service: Client, receiver: WebhookEndpoint) -> None:
        webhook = await made(service, receiver.url)
        path = f"/v1/webhooks/{webhook['id']}"
        events = ["turn.failed", "turn.failed", "file.created"]
        changed = (await service.patch(path, json={"events": events, "url": receiver.url + "/2"})).json()
        assert (changed["events"], changed["url"]) == (["turn.failed", "file.created"], receiver.url + "/2")
        assert (await service.patch(path, json={})).json()["events"] == ["turn.failed", "file.created"]
        assert (await service.delete(path)).status_code == 204
        assert code_of(await service.get(path)) == (404, "not_found")

    @pytest.mark.parametrize(
        "body",
        [
            {},
            {"url": "https://example.com"},
            {"url": "https://example.com", "events": []},
            {"url": "https://example.com", "events": ["turn.began"]},
            {"url": "ftp://example.com", "events": TURNS},
            {"url": "https://user:word@example.com", "events": TURNS},
            {"url": "nonsense", "events": TURNS},
            {"url": "https://example.com", "events": TURNS, "secret": "mine"},
            {"url": "https://example.com/" + "x" * 2_000, "events": TURNS},
        ],
    )
    async def test_refuse_what_makes_no_webhook(self, service: Client, body: Any) -> None:
        assert code_of(await service.post("/v1/webhooks", json=body)) == (422, "invalid_request")
        assert (await service.read("/v1/webhooks"))["data"] == []

    async def test_are_for_admins(self, server: ApiServer, service: Client, user: Client) -> None:
        admin = await server.user(service, "boss", role="admin")
        webhook = await made(admin, "https://example.com/hook")
        for path in ("/v1/webhooks", f"/v1/webhooks/{webhook['id']}"):
            assert code_of(await user.get(path)) == (403, "forbidden")

    async def test_know_only_their_own_deliveries(self, service: Client) -> None:
        webhook = await made(service, "https://example.com/hook")
        path = f"/v1/webhooks/{webhook['id']}/deliveries/{fake_id('evt')}/redeliver"
        assert code_of(await service.post(path)) == (404, "not_found")
        assert code_of(await service.patch(f"/v1/webhooks/{fake_id('webhook')}", json={"url": "http://10.0.0.1/"})) == (
            404,
            "not_found",
        )


class TestPrivateAddresses:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return settings_for(tmp_path, sweep_seconds=0.1)

    @pytest.mark.parametrize("url", ["http://127.0.0.1:9/", "http://localhost/", "http://169.254.169.254/latest"])
    async def test_are_refused_as_for_tools(self, service: Client, url: str) -> None:
        refused = await service.post("/v1/webhooks", json={"url": url, "events": TURNS})
        assert code_of(refused) == (422, "invalid_request")
        assert "TURNKEEP_ALLOW_PRIVATE_ADDRESSES" in refused.json()["detail"]
        webhook = await made(service, "https://example.com/")
        path = f"/v1/webhooks/{webhook['id']}"
        assert code_of(await service.patch(path, json={"url": url})) == (422, "invalid_request")

    async def test_are_not_called_either_if_they_were_stored(
        self, server: ApiServer, service: Client, user: Client, receiver: WebhookEndpoint
    ) -> None:
        webhook = await made(service, "https://example.com/hook")
        store, me = server.runtime.store, await service.read("/v1/me")
        [found] = [
            each
            for org in await store.orgs()
            for each in await store.webhooks(org.id, me["workspace_id"])
            if each.id == webhook["id"]
        ]
        moved = structs.replace(found, url=receiver.url)
        await store.change_webhook(found.org_id, found.workspace_id, found.id, lambda _: moved)
        await user.ask()
        assert "not public" in (await until_failed(service, webhook))["error"]
        assert receiver.received == []


class TestOpenAisLibrary:
    def test_accepts_the_signature_of_a_response_event(self) -> None:
        secret = webhook_secret(b"s" * 32)
        event = {
            "id": "evt_1",
            "object": "event",
            "created_at": int(time.time()),
            "type": "response.completed",
            "data": {"id": "resp_1"},
        }
        body = json.dumps(event).encode()
        headers = webhook_headers(secret, "evt_1", int(time.time()), body)
        client = openai.OpenAI(api_key="none", webhook_secret=secret)
        unwrapped = client.webhooks.unwrap(body, headers)
        assert unwrapped.type == "response.completed"
        assert unwrapped.data.id == "resp_1"
        with pytest.raises(openai.InvalidWebhookSignatureError):
            client.webhooks.verify_signature(body.replace(b"resp_1", b"resp_2"), headers)


class TestTheManual:
    """The receiver of `docs/howto/receive-webhooks.md`, as it stands there."""

    PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "receive-webhooks.md").read_text("utf-8")

    async def test_its_receiver_takes_each_event_once_and_refuses_others(
        self,
        service: Client,
        user: Client,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        [text] = [one for one in re.findall(r"```python\n(.*?)```", self.PAGE, re.DOTALL) if "standardwebhooks" in one]
        monkeypatch.chdir(tmp_path)
        listener = socket.create_server(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/turnkeep"
        webhook = await made(service, url)
        Path("webhook_secret").write_text(webhook["secret"] + "\n", encoding="utf-8")
        program: Any = {}
        exec(compile(text, "howto", "exec"), program)
        runner = web.AppRunner(program["app"])
        await runner.setup()
        await web.SockSite(runner, listener).start()
        try:
            turn = (await user.ask())["turn"]["id"]
            [delivery] = await until_delivered(service, webhook)
            await service.post(f"/v1/webhooks/{webhook['id']}/deliveries/{delivery['id']}/redeliver")
            await until_delivered(service, webhook)
            assert capsys.readouterr().out.splitlines() == [f"answered ann {turn}"]
            async with httpx.AsyncClient(trust_env=False) as stranger:
                headers = webhook_headers(webhook_secret(b"x" * 32), "evt_1", int(time.time()), b"{}")
                assert (await stranger.post(url, content=b"{}", headers=headers)).status_code == 401
        finally:
            await runner.cleanup()
