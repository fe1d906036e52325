"""Where Redis is: one server, the primary that Sentinels name, or a cluster.

| address | meaning |
|---|---|
| `redis://`, `rediss://` (TLS), `unix://` | one server |
| `redis+sentinel://host:26379,host:26379/name/db` | the primary that these Sentinels call `name` |
| `redis+cluster://host:7000,host:7001` | a cluster, found through any of these nodes |

`rediss+sentinel` and `rediss+cluster` are the same with TLS. User and password are those of Redis. With
`?sentinel_auth=1` the Sentinels get them too.
"""

import random
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from redis.asyncio import Redis
from redis.asyncio.client import Pipeline, PubSub
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.crc import key_slot
from redis.exceptions import ConnectionError as NotConnected
from redis.exceptions import RedisError

from turnkeep.tcp import silence_options

_UNAVAILABLE = (RedisError, OSError, TimeoutError)
_HOST = re.compile(r"(?:\[(?P<bracketed>[^]]+)\]|(?P<plain>[^:,]+))(?::(?P<port>\d+))?")
_PORTS = {"sentinel": 26379, "cluster": 6379}
_SHARDED_SINCE = 7

Place = tuple[str, int]


class RedisServers:
    """The servers of one address. `connected` finds the one that takes messages."""

    def __init__(self, url: str, *, seconds: float, prefix: str = "turnkeep") -> None:
        """A server must accept a connection and answer within so many `seconds`."""
        parts = urlsplit(url)
        scheme, _, self._kind = parts.scheme.partition("+")
        self._options: dict[str, Any] = {
            "socket_timeout": seconds,
            "socket_connect_timeout": seconds,
            "retry": Retry(NoBackoff(), 0),
        }
        if scheme != "unix":
            self._options |= {"socket_keepalive": True, "socket_keepalive_options": silence_options()}
        self._client: Redis | None = None
        self._owned: list[Redis] = []
        self._tag = prefix
        self.is_sharded = False
        """Whether channels belong to one part of a cluster. The other parts then do not get its messages."""
        self.prefix = prefix
        """How the names of channels begin. In a cluster all of them belong to one slot."""
        if not self._kind:
            self._client = Redis.from_url(url, **self._options)
            self._owned.append(self._client)
            return
        user, password = _credentials(parts)
        self._options |= {"username": user, "password": password, "ssl": scheme == "rediss"}
        self._places = _places(parts, _PORTS[self._kind])
        if self._kind == "sentinel":
            self._client = self._primary(parts)
        else:
            self.prefix = f"{{{prefix}}}"

    @asynccontextmanager
    async def connected(self) -> "AsyncIterator[Redis]":
        """The server for messages. In a cluster it owns the slot of all channels; each call finds it again."""
        if self._client is not None:
            yield self._client
            return
        owner = await self._find_owner()
        try:
            yield owner
        finally:
            with suppress(*_UNAVAILABLE):
                await owner.aclose()

    def publish(self, pipeline: Pipeline, channel: str, message: bytes) -> None:
        if self.is_sharded:
            _ = pipeline.execute_command("SPUBLISH", channel, message)
        else:
            _ = pipeline.publish(channel, message)

    async def subscribe(self, pubsub: PubSub, *channels: str) -> None:
        await (pubsub.ssubscribe if self.is_sharded else pubsub.subscribe)(*channels)

    async def unsubscribe(self, pubsub: PubSub, *channels: str) -> None:
        await (pubsub.sunsubscribe if self.is_sharded else pubsub.unsubscribe)(*channels)

    async def close(self) -> None:
        for client in self._owned:
            with suppress(*_UNAVAILABLE):
                await client.aclose()

    def _primary(self, parts: SplitResult) -> Redis:
        name, _, database = parts.path.strip("/").partition("/")
        asked = {name: self._options[name] for name in ("socket_timeout", "socket_connect_timeout", "retry", "ssl")}
        if parse_qs(parts.query).get("sentinel_auth") == ["1"]:
            asked |= {name: self._options[name] for name in ("username", "password")}
        sentinel = Sentinel(self._places, sentinel_kwargs=asked, **self._options)  # type: ignore[no-untyped-call]
        primary: Redis = sentinel.master_for(name, db=int(database or 0))
        self._owned = [*sentinel.sentinels, primary]
        return primary

    async def _find_owner(self) -> Redis:
        """Ask the nodes, in any order, which of them has the slot of all channels."""
        slot, error = key_slot(self._tag.encode()), None
        for place in random.sample(self._places, len(self._places)):
            node = self._node(place)
            try:
                version = (await node.info("server"))["redis_version"]
                ranges = await node.execute_command("CLUSTER SLOTS")  # type: ignore[no-untyped-call]
            except _UNAVAILABLE as exc:
                error = exc
                continue
            finally:
                await node.aclose()
            primaries = {(first, last): _primary_of(nodes[0], place) for first, last, *nodes in ranges}
            self._places = list(dict.fromkeys([*self._places, *primaries.values()]))
            owner = next((each for (first, last), each in primaries.items() if first <= slot <= last), None)
            if owner is not None:
                self.is_sharded = int(version.split(".")[0]) >= _SHARDED_SINCE
                return self._node(owner)
        raise NotConnected(f"No node of the cluster could say where the channels are: {error}")

    def _node(self, place: Place) -> Redis:
        host, port = place
        return Redis(host=host, port=port, **self._options)


def _primary_of(node: list[Any], asked: Place) -> Place:
    """Where the primary of a range of slots is. A node that does not know its own host leaves it out."""
    host, port = node[:2]
    return host.decode() if host else asked[0], port


def _places(parts: SplitResult, port: int) -> list[Place]:
    hosts = parts.netloc.rpartition("@")[2]
    found = [_HOST.fullmatch(each) for each in hosts.split(",")]
    return [((each["bracketed"] or each["plain"]), int(each["port"] or port)) for each in found if each]


def _credentials(parts: SplitResult) -> tuple[str | None, str | None]:
    user, _, password = parts.netloc.rpartition("@")[0].partition(":")
    return unquote(user) or None, unquote(password) or None
