"""The sender of webhooks: deliveries are posted by one worker at a time, and slow endpoints hold up no others."""

import asyncio
from collections.abc import Awaitable, Callable

from tests.engine.harness import Cluster, FailOnDefect
from turnkeep.engine.webhooks import EACH_ENDPOINT, WebhookSender, pause_seconds
from turnkeep.errors import Unavailable
from turnkeep.model.outbox import Delivery, TakenDelivery, Webhook
from turnkeep.store.commands import AttemptOutcome
from turnkeep.store.ports import Store

REFUSED = AttemptOutcome(response_status=500, error="HTTP 500.", pause_seconds=0.01)
Answer = Callable[[TakenDelivery], Awaitable[AttemptOutcome]]


class Endpoints:
    """The endpoints of the host. They take everything, unless a test has another answer for one of them."""

    def __init__(self) -> None:
        self.sent: list[TakenDelivery] = []
        self.answers: dict[str, Answer] = {}
        self.at_once: dict[str, int] = {}
        self.most: dict[str, int] = {}

    async def post(self, taken: TakenDelivery) -> AttemptOutcome:
        which = taken.webhook.id
        self.sent.append(taken)
        self.at_once[which] = self.at_once.get(which, 0) + 1
        self.most[which] = max(self.most.get(which, 0), self.at_once[which])
        try:
            await asyncio.sleep(0)
            return await self.answers[which](taken) if which in self.answers else AttemptOutcome(response_status=200)
        finally:
            self.at_once[which] -= 1

    def turns_of(self, webhook: Webhook) -> list[str]:
        return [str(each.delivery.data["turn_id"]) for each in self.sent if each.webhook.id == webhook.id]


async def a_webhook(cluster: Cluster) -> Webhook:
    tenant = cluster.tenant
    return await cluster.store.create_webhook(
        tenant.org.id, tenant.workspace.id, url="https://e.com", events=["turn.succeeded"], secret="s"
    )


async def all_deliveries(cluster: Cluster, webhook: Webhook) -> list[Delivery]:
    tenant = cluster.tenant
    page = await cluster.store.deliveries(tenant.org.id, tenant.workspace.id, webhook.id, limit=100)
    return list(page.data)


async def hang(_: TakenDelivery) -> AttemptOutcome:
    await asyncio.Event().wait()
    raise AssertionError


class TestAWorker:
    async def test_sends_soon_after_the_end_of_a_turn(self, cluster: Cluster) -> None:
        endpoints, webhook = Endpoints(), await a_webhook(cluster)
        engine = await cluster.enter([["Hi."]], webhooks=endpoints)
        turn = await cluster.answer(engine)

        async def is_delivered() -> bool:
            return [each.status for each in await all_deliveries(cluster, webhook)] == ["delivered"]

        await cluster.until(is_delivered)
        assert endpoints.turns_of(webhook) == [turn.id]

    async def test_sends_again_what_was_refused_under_the_same_id(self, cluster: Cluster) -> None:
        endpoints, webhook = Endpoints(), await a_webhook(cluster)
        answers = [REFUSED, AttemptOutcome(response_status=200)]

        async def refuse_once(_: TakenDelivery) -> AttemptOutcome:
            return answers.pop(0)

        endpoints.answers[webhook.id] = refuse_once
        engine = await cluster.enter([["Hi."]], webhooks=endpoints)
        await cluster.answer(engine)

        async def is_delivered() -> bool:
            return [each.status for each in await all_deliveries(cluster, webhook)] == ["delivered"]

        await cluster.until(is_delivered)
        first, second = endpoints.sent
        assert first.delivery.id == second.delivery.id
        assert first.delivery.payload == second.delivery.payload

    async def test_asks_nothing_while_there_is_nothing_to_send(self, cluster: Cluster) -> None:
        looks = 0

        class Looking(Endpoints):
            pass

        class CountingStore:
            async def take_deliveries(self, **_: object) -> list[TakenDelivery]:
                nonlocal looks
                looks += 1
                return []

            async def end_attempt(self, delivery: Delivery, outcome: AttemptOutcome) -> None:
                raise AssertionError

        sender = WebhookSender(CountingStore(), Looking(), FailOnDefect())
        sending = asyncio.create_task(sender.send_for_ever())
        await asyncio.sleep(0.05)
        assert looks == 0
        sender.wake()

        async def has_looked() -> bool:
            return looks == 1

        await cluster.until(has_looked)
        sending.cancel()

    async def test_that_loses_the_database_before_the_end_is_noted_sends_again(self, cluster: Cluster) -> None:
        endpoints, webhook = Endpoints(), await a_webhook(cluster)
        await cluster.answer(await cluster.enter([["Hi."]]))
        observer = FailOnDefect()
        forgetful = WebhookSender(Forgetful(cluster.store), endpoints, observer)
        await send_once(forgetful)
        assert [each.status for each in await all_deliveries(cluster, webhook)] == ["pending"]
        await asyncio.sleep(0.02)
        await send_once(WebhookSender(cluster.store, endpoints, observer))
        assert [each.status for each in await all_deliveries(cluster, webhook)] == ["delivered"]
        assert len({each.delivery.id for each in endpoints.sent}) == 1
        assert len(endpoints.sent) == 2
        assert observer.defects == []


class Forgetful:
    """Gives deliveries on a short lease, and is away when their end is to be noted."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def take_deliveries(self, **options: object) -> list[TakenDelivery]:
        return await self._store.take_deliveries(**options | {"lease_seconds": 0.01})  # type: ignore[arg-type]

    async def end_attempt(self, delivery: Delivery, outcome: AttemptOutcome) -> Delivery | None:
        raise Unavailable("The database is away.")


async def send_once(sender: WebhookSender) -> None:
    """Send what is due, and wait for the answers."""
    await sender._send_some()
    await sender.finish()


class TestEndpointsBesideEachOther:
    async def test_one_that_hangs_holds_up_no_other_and_has_one_request(self, cluster: Cluster) -> None:
        endpoints = Endpoints()
        stuck, well = await a_webhook(cluster), await a_webhook(cluster)
        endpoints.answers[stuck.id] = hang
        engine = await cluster.enter(lambda _: ["Hi."], webhooks=endpoints)
        turns = [(await cluster.answer(engine)).id for _ in range(5)]

        async def all_came() -> bool:
            return sorted(endpoints.turns_of(well)) == sorted(turns)

        await cluster.until(all_came)
        assert endpoints.most[stuck.id] == 1
        assert len(endpoints.turns_of(stuck)) == 1

    async def test_one_that_fails_rests_while_others_are_served(self, cluster: Cluster) -> None:
        endpoints, observer = Endpoints(), FailOnDefect()
        broken, well = await a_webhook(cluster), await a_webhook(cluster)

        async def refuse(_: TakenDelivery) -> AttemptOutcome:
            return REFUSED

        endpoints.answers[broken.id] = refuse
        engine = await cluster.enter(lambda _: ["Hi."])
        for _ in range(4):
            await cluster.answer(engine)
        sender = WebhookSender(cluster.store, endpoints, observer)
        for _ in range(8):
            await send_once(sender)
        assert len(endpoints.turns_of(broken)) < 4, "its queue waits"
        assert len(endpoints.turns_of(well)) == 4
        assert observer.defects == []

    async def test_one_that_takes_what_it_gets_has_several_requests(self, cluster: Cluster) -> None:
        endpoints = Endpoints()
        webhook = await a_webhook(cluster)
        engine = await cluster.enter(lambda _: ["Hi."])
        for _ in range(1 + 2 * EACH_ENDPOINT):
            await cluster.answer(engine)
        sender = WebhookSender(cluster.store, endpoints, FailOnDefect())
        for _ in range(3):
            await send_once(sender)
        assert endpoints.most[webhook.id] == EACH_ENDPOINT
        assert len(endpoints.turns_of(webhook)) == 1 + 2 * EACH_ENDPOINT

    async def test_a_bug_of_the_client_is_reported_and_ends_nothing(self, cluster: Cluster) -> None:
        endpoints, observer = Endpoints(), FailOnDefect()
        webhook = await a_webhook(cluster)

        async def stumble(_: TakenDelivery) -> AttemptOutcome:
            raise ValueError("a bug")

        endpoints.answers[webhook.id] = stumble
        await cluster.answer(await cluster.enter([["Hi."]]))
        await send_once(WebhookSender(cluster.store, endpoints, observer))
        assert [str(defect) for defect in observer.defects] == ["a bug"]
        assert [each.status for each in await all_deliveries(cluster, webhook)] == ["pending"]


class TestThePause:
    def test_grows_and_varies(self) -> None:
        assert [pause_seconds(n, lambda: 0.5) for n in (1, 2, 3, 4)] == [5, 20, 80, 320]
        assert pause_seconds(50, lambda: 0.5) == 12 * 3_600
        assert (pause_seconds(1, lambda: 0.0), round(pause_seconds(1, lambda: 1.0), 3)) == (4, 6)

    def test_gives_at_least_ten_attempts_in_three_days(self) -> None:
        spent, attempts = 0.0, 0
        while spent < 3 * 86_400:
            attempts += 1
            spent += pause_seconds(attempts, lambda: 1.0)
        assert attempts >= 10
