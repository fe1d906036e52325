"""Failures: an error of HTTP or of a stream, translated into a `FailedAttempt` that says whether a retry may help.

The provider's own message is kept, with keys masked.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import aiohttp
import msgspec
from msgspec import Struct

from turnkeep.config import MASK, masked
from turnkeep.providers.ports import ProviderFailed, ProviderTimedOut

MAX_WORDS = 2_000

_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
_TRANSIENT_KINDS = frozenset(
    {"overloaded_error", "rate_limit_error", "api_error", "timeout_error", "server_error", "rate_limit_exceeded"}
    | {"server_is_overloaded", "slow_down", "service_unavailable", "internal_server_error"}
)
_HOPELESS_KINDS = frozenset({"insufficient_quota", "billing_error", "billing_hard_limit_reached"})
_KEY = re.compile(r"\b(?:sk|rk|pk)-[A-Za-z0-9_*.-]{6,}")
_PASSWORD = re.compile(r"(?<=://)[^/\s@]*:[^/\s@]+(?=@)")
"""In an address, with the name before it."""


class StreamFailed(Exception):
    """The stream contains an error, or ended too early: no answer will come."""

    def __init__(self, words: str, *, kind: str | None = None, is_transient: bool = False) -> None:
        super().__init__(words)
        self.words = words
        self.is_transient = is_transient or kind in _TRANSIENT_KINDS


class ErrorResponse(Exception):
    """The provider reported an error: with the status of its response, or inside a stream (then without a status).

    `body` is JSON, decoded or not, or any text.
    """

    def __init__(self, body: Any, *, status: int | None = None, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(f"an error with status {status}")
        self.body = _decoded(body) if isinstance(body, str) else body
        self.status = status
        self.headers: Mapping[str, str] = {} if headers is None else headers


class NotAsked(Exception):
    """The request cannot be sent: the address, a header or the request itself is invalid."""


FAILURES = (
    *(ErrorResponse, NotAsked, StreamFailed),
    *(aiohttp.ClientError, OSError),
    *(ValueError, TypeError, AttributeError, LookupError, RecursionError),
)
"""Every error of a request: reported by the provider, of the connection, and of a response that does not follow the
protocol. A timeout is an OSError."""

BROKEN_CONNECTION = (aiohttp.ClientError, OSError)


class FailedAttempt(Struct, frozen=True, kw_only=True):
    """Why one attempt failed. `words` are the provider's own, `error` is the error of the turn."""

    error: ProviderFailed
    words: str = ""
    status: int | None = None
    is_transient: bool = False
    retry_after_seconds: float | None = None


def failed_attempt(
    exc: Exception, *, provider: str, secrets: Sequence[str], timeout_seconds: float, now: datetime | None = None
) -> FailedAttempt:
    """Translate an error that was raised while a request was sent or its response was read."""
    match exc:
        case StreamFailed():
            words = clean(exc.words, secrets)
            error = ProviderFailed(f"{provider}: {words}")
            return FailedAttempt(error=error, words=words, is_transient=exc.is_transient)
        case ErrorResponse():
            return _of_refusal(exc, provider, secrets, now or datetime.now(UTC))
        case NotAsked():
            words = clean(str(exc), secrets)[:200]
            return FailedAttempt(error=ProviderFailed(f"{provider} cannot be asked: {words}"), words=words)
        case aiohttp.ConnectionTimeoutError():
            return FailedAttempt(error=ProviderFailed(f"{provider} could not be reached in time."), is_transient=True)
        case TimeoutError():
            return FailedAttempt(error=ProviderTimedOut(f"{provider} sent nothing for {timeout_seconds:g} seconds."))
        case aiohttp.ClientError() | OSError():
            words = clean(_connection_words(exc), secrets)
            error = ProviderFailed(f"The connection to {provider} failed: {words}")
            is_refused = isinstance(exc, aiohttp.ClientHttpProxyError) and exc.status not in _TRANSIENT_STATUS
            return FailedAttempt(error=error, words=words, is_transient=not is_refused)
        case _:
            words = clean(str(exc), secrets)[:200]
            error = ProviderFailed(f"{provider} sent what is not an answer of its protocol: {words}")
            return FailedAttempt(error=error, words=words)


def clean(words: str, secrets: Sequence[str] = ()) -> str:
    """The message on one line, not too long, with every key masked."""
    words = _PASSWORD.sub(MASK, _KEY.sub(MASK, masked(words, secrets)))
    words = " ".join(words.split())
    return words if len(words) <= MAX_WORDS else words[:MAX_WORDS] + "…"


def _connection_words(exc: Exception) -> str:
    """What went wrong, and with which server. aiohttp's own sentence would show its settings too."""
    if isinstance(exc, aiohttp.ClientConnectorCertificateError):
        return f"{exc.host}:{exc.port}: {exc.certificate_error}"
    if isinstance(exc, aiohttp.ClientConnectorError):
        return f"{exc.host}:{exc.port}: {exc.os_error.strerror or exc.os_error}"
    if isinstance(exc, aiohttp.ClientResponseError):
        # Its own words contain the address, which may hold a key or the password of a proxy.
        server = "the proxy: " if isinstance(exc, aiohttp.ClientHttpProxyError) else ""
        return f"{server}{exc.status} {exc.message}"
    return str(exc) or type(exc).__name__


def _of_refusal(exc: ErrorResponse, provider: str, secrets: Sequence[str], now: datetime) -> FailedAttempt:
    words, kinds = _said(exc)
    words = clean(words, secrets)
    status, headers = exc.status, exc.headers
    if status is None:
        return FailedAttempt(
            error=ProviderFailed(f"{provider} broke off: {words}"),
            words=words,
            is_transient=bool(kinds & _TRANSIENT_KINDS) and not kinds & _HOPELESS_KINDS,
        )
    is_transient = status in _TRANSIENT_STATUS
    if headers.get("x-should-retry") in {"true", "false"}:
        is_transient = headers["x-should-retry"] == "true"
    return FailedAttempt(
        error=ProviderFailed(f"{provider} answered {status}: {words}"),
        words=words,
        status=status,
        is_transient=is_transient and not kinds & _HOPELESS_KINDS,
        retry_after_seconds=_retry_after(headers, now),
    )


def _said(exc: ErrorResponse) -> tuple[str, set[str]]:
    """The message and the kinds (type and code) of an error body, in any of the shapes that servers use."""
    body = exc.body
    inner = (body.get("error") or body) if isinstance(body, dict) else body
    if isinstance(inner, dict):
        words = next((inner[name] for name in ("message", "detail", "msg") if isinstance(inner.get(name), str)), "")
        return words or str(inner), {str(inner[name]) for name in ("type", "code") if inner.get(name)}
    if isinstance(inner, str) and inner.strip():
        return re.sub(r"<[^>]*>", " ", inner)[:500], set()
    return (str(inner) if inner else "without a reason"), set()


def _decoded(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError):
        return text


def _retry_after(headers: Mapping[str, str], now: datetime) -> float | None:
    """`retry-after-ms`, or `retry-after` in seconds or as a date."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        return max(0.0, float(headers["retry-after"])) if "retry-after" in headers else None
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(headers["retry-after"]) - now).total_seconds())
    except (ValueError, TypeError, KeyError, OverflowError):
        return None
