"""Where a database is: at one host, or at several of which one takes writes.

Each host has a time limit of its own to accept a connection, and the kernel notices a host that falls silent later
(`tcp.py`). The hosts are tried one after the other; one that failed is tried last the next time. Of several hosts only
one that takes writes is used, so a standby that was promoted is found with the next connection.
"""

import logging
import os
from typing import Any
from urllib.parse import parse_qs, unquote, urlencode, urlsplit, urlunsplit

import asyncpg

from turnkeep.errors import InvalidRequest
from turnkeep.tcp import notice_silence

CONNECT_SECONDS = 3.0
"""How long one host may take to accept a connection, unless the address has a `connect_timeout`."""

_UNUSABLE = (OSError, asyncpg.InternalClientError, asyncpg.PostgresConnectionError, asyncpg.CannotConnectNowError)
"""What a host raises that is away, is starting, or does not take writes."""

_logger = logging.getLogger(__name__)


class DatabaseAddress:
    """An address of PostgreSQL in the form of libpq, `postgresql://user@host1,host2:5433/name?…`."""

    def __init__(self, url: str, **options: Any) -> None:
        """`options` are those of `asyncpg.connect`, for every connection. Raises InvalidRequest for a bad address."""
        self._options = options
        self._url, self._seconds = _without_timeout(url)
        self._hosts = _hosts_of(url)
        """In the order in which they are tried."""
        self._used: dict[str, Any] | None = None
        if len(self._hosts) > 1 and "target_session_attrs" not in parse_qs(urlsplit(url).query):
            self._options = {"target_session_attrs": os.environ.get("PGTARGETSESSIONATTRS", "read-write"), **options}

    async def connect(self, **options: Any) -> "asyncpg.Connection[asyncpg.Record]":
        """A connection to the first host that accepts it. Raises what the last host said."""
        hosts = list(self._hosts)
        while True:
            host = hosts.pop(0)
            try:
                raw: Any = await asyncpg.connect(self._url, timeout=self._seconds, **host, **self._options, **options)
            except _UNUSABLE:
                self._try_last(host)
                if not hosts:
                    raise
            else:
                self._note_use(host)
                notice_silence(raw._transport.get_extra_info("socket"))  # asyncpg has no public way to its socket
                return raw  # type: ignore[no-any-return]

    def _try_last(self, host: dict[str, Any]) -> None:
        """Begin with another host from now on. Several connections may fail at once, so only the first is moved."""
        if self._hosts[0] == host:
            self._hosts.append(self._hosts.pop(0))

    def _note_use(self, host: dict[str, Any]) -> None:
        if self._used is not None and self._used != host:
            _logger.warning("The database is used at another host now: %s", host["host"])
        self._used = host


def _hosts_of(url: str) -> list[dict[str, Any]]:
    """Host and port of each server, as arguments of asyncpg. An address of one host is left to asyncpg."""
    parts = urlsplit(url)
    named = unquote(parts.netloc.rpartition("@")[2]).split(",")
    query = parse_qs(parts.query)
    if named == [""]:
        named = query.get("host", [""])[-1].split(",")
    if len(named) == 1:
        return [{}]
    ports = query.get("port", [""])[-1].split(",")
    ports = ports * len(named) if len(ports) == 1 else ports
    if len(ports) != len(named):
        raise InvalidRequest(f"The address of the database has {len(named)} hosts and {len(ports)} ports.")
    return [_host_of(host, port) for host, port in zip(named, ports, strict=True)]


def _host_of(named: str, port: str) -> dict[str, Any]:
    try:
        parts = urlsplit("" if named.startswith("/") else f"//{named}")
        return {"host": parts.hostname or named, "port": parts.port or (int(port) if port else None)}
    except ValueError as exc:
        raise InvalidRequest(f"{named!r} in the address of the database is not a host with a port.") from exc


def _without_timeout(url: str) -> tuple[str, float]:
    """The address and its `connect_timeout`. asyncpg would send that to the server, as a setting."""
    parts = urlsplit(url)
    query = parse_qs(parts.query)
    if "connect_timeout" not in query:
        return url, CONNECT_SECONDS
    text = query.pop("connect_timeout")[-1]
    try:
        seconds = float(text)
    except ValueError as exc:
        raise InvalidRequest(f"`connect_timeout` in the address of the database is not a number: {text!r}.") from exc
    return urlunsplit(parts._replace(query=urlencode(query, doseq=True))), seconds
