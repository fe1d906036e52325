"""The sender of webhooks: each worker takes deliveries from the store and posts them to the endpoints of the host.

A delivery is leased to one worker. Its end is noted after the endpoint has answered, so a crash in between sends it
again under the same id: at least once. An idle worker asks nothing: the sweep that finds deliveries wakes the sender.

An endpoint that hangs holds one request of a worker. Endpoints whose last request was taken get several at a time.
After a failure, this worker lets an endpoint rest for a moment, so that a long queue for it does not fill all places.

Addresses come from users, so requests go through the same guard as those of tools (docs/decisions/0601).
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import aiohttp
import msgspec
from msgspec import Struct

from turnkeep.clock import Clock, system_clock
from turnkeep.engine.observer import Observer
from turnkeep.errors import TurnkeepError, WorldError
from turnkeep.ids import WebhookId
from turnkeep.model.outbox import TakenDelivery, Webhook, webhook_headers
from turnkeep.store.commands import AttemptOutcome
from turnkeep.store.ports import DeliveryStore
from turnkeep.tools.addresses import AddressGuard
from turnkeep.tools.http_tools import failure_words, open_session
from turnkeep.tools.vault import Vault

MOST_REQUESTS = 64
"""Of one worker at a time."""
EACH_ENDPOINT = 8
"""Of one worker at a time to an endpoint that took the last one."""
SEND_SECONDS = 10.0
LEASE_SECONDS = 20.0
LAST_SECONDS = 2.0
FIRST_PAUSE_SECONDS = 5.0
LONGEST_PAUSE_SECONDS = 12 * 3_600.0
LONGEST_REST_SECONDS = 300.0
EXCERPT_BYTES = 300
"""What is kept of the response to a request that was not taken."""
KNOWN_ENDPOINTS = 1_000

_encode = msgspec.json.Encoder().encode
_random = random.SystemRandom()
_logger = logging.getLogger("turnkeep.webhooks")


class WebhookPost(Protocol):
    """Posts to endpoints."""

    async def post(self, taken: TakenDelivery) -> AttemptOutcome:
        """Send it once. The outcome says what the endpoint answered; it has a pause if another attempt makes sense."""


class WebhookClient:
    """Posts deliveries over HTTP, signed with the secret of their webhook. Close it."""

    def __init__(self, guard: AddressGuard, vault: Vault, clock: Clock = system_clock) -> None:
        self._guard = guard
        self._vault = vault
        self._clock = clock
        self._session: aiohttp.ClientSession | None = None

    async def check(self, url: str) -> None:
        """Raises AddressRefused for an address that may not be called."""
        address = self._guard.check_url(url)
        with suppress(WorldError):  # a name that does not resolve now may do later
            await self._guard.check_reachable(address)

    async def post(self, taken: TakenDelivery) -> AttemptOutcome:
        delivery, pause = taken.delivery, pause_seconds(taken.delivery.attempts)
        try:
            async with asyncio.timeout(SEND_SECONDS):
                return await self._send(taken.webhook, delivery.id, _encode(delivery.payload), pause)
        except TurnkeepError as exc:  # the address is refused now, or the secret cannot be opened
            return AttemptOutcome(error=exc.detail, pause_seconds=pause)
        except TimeoutError:
            return AttemptOutcome(error=f"No answer within {SEND_SECONDS:g} seconds.", pause_seconds=pause)
        except (aiohttp.ClientError, OSError, ValueError) as exc:
            return AttemptOutcome(error=f"The endpoint cannot be reached: {failure_words(exc)}.", pause_seconds=pause)

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()

    async def _send(self, webhook: Webhook, event_id: str, body: bytes, pause: float) -> AttemptOutcome:
        if self._session is None:
            self._session = open_session(self._guard)
        secret = self._vault.open(webhook.org_id, webhook.secret)
        headers = webhook_headers(secret, event_id, self._clock() // 1000, body)
        response = await self._session.post(
            self._guard.check_url(webhook.url),
            data=body,
            headers={"Content-Type": "application/json", **headers},
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        try:
            if 200 <= response.status < 300:
                return AttemptOutcome(response_status=response.status)
            return AttemptOutcome(
                response_status=response.status,
                error=await _refusal(response),
                pause_seconds=None if response.status == 410 else pause,
                is_gone=response.status == 410,
            )
        finally:
            response.close()  # what is left of the body is not read


async def _refusal(response: aiohttp.ClientResponse) -> str:
    """What the endpoint answered, in short."""
    if 300 <= response.status < 400:
        return f"HTTP {response.status}: redirects are not followed. Save the new address."
    excerpt = await response.content.read(EXCERPT_BYTES)
    words = "".join(character for character in excerpt.decode("utf-8", "replace") if character.isprintable()).strip()
    return f"HTTP {response.status}: {words}" if words else f"HTTP {response.status}."


def pause_seconds(attempts: int, chance: Callable[[], float] = _random.random) -> float:
    """The pause before the next attempt: 5 seconds, then four times as long each time, up to twelve hours, and up to a
    fifth more or less, so that many deliveries that failed together do not come together again."""
    pause = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 4.0 ** min(max(attempts, 1) - 1, 20))
    return pause * (0.8 + 0.4 * chance())


class KnownEndpoint(Struct):
    """What this worker knows of one endpoint. It holds no fact that the store needs."""

    requests: int = 0
    failures: int = 0
    rests_until: float = 0.0


class WebhookSender:
    """Sends deliveries for one worker."""

    def __init__(self, store: DeliveryStore, client: WebhookPost, observer: Observer) -> None:
        self._store = store
        self._client = client
        self._observer = observer
        self._wanted = asyncio.Event()
        self._endpoints: dict[WebhookId, KnownEndpoint] = {}
        self._requests: set[asyncio.Task[None]] = set()
        self._after = ""
        """The last webhook that was served: the next look begins behind it."""

    def wake(self) -> None:
        """There are deliveries to send."""
        self._wanted.set()

    async def send_for_ever(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                while await self._send_some():
                    pass
            except WorldError:
                pass  # the database is away; the deliveries wait
            except Exception as exc:  # a look that fails must not end all deliveries
                self._observer.defect(None, exc)

    async def finish(self) -> None:
        """Let requests that are under way end. Those that take longer are sent again by another worker."""
        if self._requests:
            await asyncio.wait(self._requests, timeout=LAST_SECONDS)
        for request in tuple(self._requests):
            request.cancel()
        if self._requests:
            await asyncio.wait(self._requests)

    async def _send_some(self) -> bool:
        """Start requests for deliveries that are due; whether there may be more to start at once."""
        free = MOST_REQUESTS - len(self._requests)
        if not free:
            return False
        now = time.monotonic()
        known = self._endpoints.items()
        taken = await self._store.take_deliveries(
            limit=free,
            lease_seconds=LEASE_SECONDS,
            after=self._after,
            busy=[id_ for id_, endpoint in known if endpoint.requests or endpoint.rests_until > now],
            trusted=[id_ for id_, endpoint in known if not endpoint.failures],
            each=EACH_ENDPOINT,
        )
        for each in taken:
            self._start(each)
        is_round_over = len(taken) < free and not self._after
        self._after = taken[-1].webhook.id if len(taken) == free else ""
        return not is_round_over

    def _start(self, taken: TakenDelivery) -> None:
        endpoint = self._endpoints.pop(taken.webhook.id, None) or KnownEndpoint(failures=1)
        self._endpoints[taken.webhook.id] = endpoint  # the last one is the one that was used last
        endpoint.requests += 1
        request = asyncio.create_task(self._send(taken, endpoint), name=f"webhook {taken.webhook.id}")
        self._requests.add(request)
        request.add_done_callback(self._requests.discard)
        while len(self._endpoints) > KNOWN_ENDPOINTS and not next(iter(self._endpoints.values())).requests:
            del self._endpoints[next(iter(self._endpoints))]

    async def _send(self, taken: TakenDelivery, endpoint: KnownEndpoint) -> None:
        try:
            outcome = await self._client.post(taken)
            ended = await self._store.end_attempt(taken.delivery, outcome)
            if ended is not None and ended.status == "failed":
                _logger.warning("A delivery to webhook %s was given up: %s", taken.webhook.id, outcome.error)
        except WorldError:
            pass  # the database is away; the lease ends, and the delivery is sent again
        except Exception as exc:
            endpoint.failures += 1
            self._observer.defect(None, exc)
        else:
            endpoint.failures = 0 if outcome.error is None else endpoint.failures + 1
        finally:
            endpoint.requests -= 1
            if endpoint.failures > 1:
                rest = min(LONGEST_REST_SECONDS, 2.0 ** min(endpoint.failures - 1, 20))
                endpoint.rests_until = time.monotonic() + rest
            self._wanted.set()
