"""Failures: the errors of an SDK, translated into a `FailedAttempt` that says whether a retry may help.

Both official SDKs have the same classes of errors, so one translation serves both; `sdk` is the module. The provider's
own message is kept, with keys masked.
"""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

from msgspec import Struct

from turnkeep.config import MASK, masked
from turnkeep.providers.ports import ProviderFailed, ProviderTimedOut

MAX_WORDS = 2_000
PROTOCOL_ERRORS = (ValueError, TypeError, AttributeError, LookupError, RecursionError)
"""Errors that are raised while a response is read that does not follow the protocol."""

_TRANSIENT_STATUS = frozenset({408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529})
_TRANSIENT_KINDS = frozenset(
    {"overloaded_error", "rate_limit_error", "api_error", "timeout_error", "server_error", "rate_limit_exceeded"}
    | {"server_is_overloaded", "slow_down", "service_unavailable", "internal_server_error"}
)
_HOPELESS_KINDS = frozenset({"insufficient_quota", "billing_error", "billing_hard_limit_reached"})
_KEY = re.compile(r"\b(?:sk|rk|pk)-[A-Za-z0-9_*.-]{6,}")


class Sdk(Protocol):
    """The part of an official SDK's module that is needed here."""

    @property
    def APIError(self) -> type[Exception]: ...
    @property
    def APIStatusError(self) -> type[Exception]: ...
    @property
    def APIConnectionError(self) -> type[Exception]: ...
    @property
    def APITimeoutError(self) -> type[Exception]: ...


class StreamFailed(Exception):
    """The stream contains an error, or ended too early: no answer will come."""

    def __init__(self, words: str, *, kind: str | None = None, is_transient: bool = False) -> None:
        super().__init__(words)
        self.words = words
        self.is_transient = is_transient or kind in _TRANSIENT_KINDS


class FailedAttempt(Struct, frozen=True, kw_only=True):
    """Why one attempt failed. `words` are the provider's own, `error` is the error of the turn."""

    error: ProviderFailed
    words: str = ""
    status: int | None = None
    is_transient: bool = False
    retry_after_seconds: float | None = None


def failed_attempt(
    exc: Exception,
    sdk: Sdk,
    *,
    provider: str,
    secrets: Sequence[str],
    timeout_seconds: float,
    now: datetime | None = None,
) -> FailedAttempt:
    """Translate an error that was raised while a request was sent or its response was read."""
    import httpx2

    if isinstance(exc, StreamFailed):
        words = clean(exc.words, secrets)
        return FailedAttempt(error=ProviderFailed(f"{provider}: {words}"), words=words, is_transient=exc.is_transient)
    if isinstance(exc, sdk.APITimeoutError | httpx2.TimeoutException | TimeoutError):
        return _of_timeout(exc, provider, timeout_seconds)
    if isinstance(exc, sdk.APIConnectionError | httpx2.TransportError):
        words = clean(str(exc.__cause__ or exc) or type(exc).__name__, secrets)
        error = ProviderFailed(f"The connection to {provider} failed: {words}")
        return FailedAttempt(error=error, words=words, is_transient=True)
    if isinstance(exc, sdk.APIError):
        return _of_refusal(exc, provider, secrets, now or datetime.now(UTC))
    words = clean(str(exc), secrets)[:200]
    if isinstance(exc, root_error(sdk)):
        return FailedAttempt(error=ProviderFailed(f"{provider} cannot be asked: {words}"), words=words)
    return FailedAttempt(
        error=ProviderFailed(f"{provider} sent what is not an answer of its protocol: {words}"), words=words
    )


def root_error(sdk: Sdk) -> type[Exception]:
    """The base class of all errors of the SDK, including those about missing keys."""
    root = sdk.APIError.__base__
    assert root is not None
    return root


def clean(words: str, secrets: Sequence[str] = ()) -> str:
    """The message on one line, not too long, with every key masked."""
    words = " ".join(_KEY.sub(MASK, masked(words, secrets)).split())
    return words if len(words) <= MAX_WORDS else words[:MAX_WORDS] + "…"


def _of_timeout(exc: Exception, provider: str, timeout_seconds: float) -> FailedAttempt:
    import httpx2

    cause = exc if isinstance(exc, httpx2.TimeoutException) else exc.__cause__
    if isinstance(cause, httpx2.ConnectTimeout | httpx2.PoolTimeout):
        return FailedAttempt(error=ProviderFailed(f"{provider} could not be reached in time."), is_transient=True)
    return FailedAttempt(error=ProviderTimedOut(f"{provider} sent nothing for {timeout_seconds:g} seconds."))


def _of_refusal(exc: Any, provider: str, secrets: Sequence[str], now: datetime) -> FailedAttempt:
    """From a response with an error status, or from an `error` event inside a stream (with status 200, or none)."""
    words, kinds = _said(exc)
    words = clean(words, secrets)
    response = getattr(exc, "response", None)
    headers: Any = {} if response is None else response.headers
    status: int | None = getattr(exc, "status_code", None)
    in_stream = status is None or status < 400
    error = ProviderFailed(f"{provider} broke off: {words}" if in_stream else f"{provider} answered {status}: {words}")
    is_transient = bool(kinds & _TRANSIENT_KINDS) if in_stream else status in _TRANSIENT_STATUS
    if not in_stream and headers.get("x-should-retry") in {"true", "false"}:
        is_transient = headers["x-should-retry"] == "true"
    return FailedAttempt(
        error=error,
        words=words,
        status=None if in_stream else status,
        is_transient=is_transient and not kinds & _HOPELESS_KINDS,
        retry_after_seconds=None if in_stream else _retry_after(headers, now),
    )


def _said(exc: Any) -> tuple[str, set[str]]:
    """The message and the kinds (type and code) of an error body, in any of the shapes that servers use."""
    body = exc.body
    inner = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(inner, dict):
        words = next((inner[name] for name in ("message", "detail", "msg") if isinstance(inner.get(name), str)), "")
        return words or str(inner), {str(inner[name]) for name in ("type", "code") if inner.get(name)}
    if isinstance(inner, str) and inner.strip():
        return re.sub(r"<[^>]*>", " ", inner)[:500], set()
    return str(getattr(exc, "message", exc)), set()


def _retry_after(headers: Any, now: datetime) -> float | None:
    """`retry-after-ms`, or `retry-after` in seconds or as a date."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        return max(0.0, float(headers["retry-after"])) if "retry-after" in headers else None
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(headers["retry-after"]) - now).total_seconds())
    except (ValueError, TypeError, KeyError):
        return None
