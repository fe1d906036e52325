"""`kill -9` between a request to a webhook and the note of its end: another server sends it again under the same id."""

import asyncio
import signal

import httpx
from aiohttp import web
from standardwebhooks import Webhook as StandardWebhook

from tests.faults.processes import WorkerProcess
from tests.faults.sites import SERVICE_KEY, Site
from tests.webhook_endpoint import Received, WebhookEndpoint

DONE_SECONDS = 120.0


def client_of(server: WorkerProcess) -> httpx.AsyncClient:
    headers = {"authorization": f"Bearer {SERVICE_KEY}"}
    url = f"http://127.0.0.1:{server.port}"
    return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=120)


class TestAServerThatIsKilledWhileItSends:
    async def test_leaves_the_delivery_to_the_next_one(self, site: Site) -> None:
        async with WebhookEndpoint.start() as receiver:
            victim = await site.serve()

            async def kill(_: Received) -> web.Response:
                victim.send(signal.SIGKILL)
                receiver.answer = None
                return web.Response()

            receiver.answer = kill
            async with client_of(victim) as client:
                events = ["turn.succeeded", "turn.failed"]
                made = await client.post("/v1/webhooks", json={"url": receiver.url, "events": events})
                webhook = made.json()
                turn = (await client.post("/v1/turns", json={"message": "w1-1 Hello"})).json()["turn"]
            assert await victim.died() == -signal.SIGKILL
            heir = await site.serve()
            first, second = await receiver.until(2, seconds=DONE_SECONDS)
            assert (first.id, first.body) == (second.id, second.body)
            body = StandardWebhook(webhook["secret"]).verify(second.body, second.headers)
            assert body["data"]["turn_id"] == turn["id"]
            async with client_of(heir) as client, asyncio.timeout(DONE_SECONDS):
                while True:
                    page = (await client.get(f"/v1/webhooks/{webhook['id']}/deliveries")).json()
                    if [each["status"] for each in page["data"]] == ["delivered"]:
                        break
                    await asyncio.sleep(0.1)
            assert page["data"][0]["attempts"] == 2
