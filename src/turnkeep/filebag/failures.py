"""What obstore raises → our errors. It tells most of what it knows only in words, so the words are read here."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

from obstore.exceptions import BaseError, PermissionDeniedError, UnauthenticatedError

from turnkeep.errors import StorageFull, TurnkeepError, Unavailable
from turnkeep.filebag.ports import Missing

_FULL = re.compile(
    r"\(os error (?:28|122|27)\)"  # no space, quota, file size limit
    r"|XMinioStorageFull|QuotaExceeded|InsufficientStorage|no free volumes|no writable volumes|status code: 507",
    re.IGNORECASE,
)


@contextmanager
def translated() -> Iterator[None]:
    """Raise our own error for whatever storage raises inside."""
    try:
        yield
    except FileNotFoundError as exc:
        raise Missing("The bytes of this file are gone.") from exc
    except (BaseError, OSError) as exc:
        raise _ours(exc) from exc


def _ours(exc: Exception) -> TurnkeepError:
    words = str(exc)
    if _FULL.search(words) or getattr(exc, "errno", None) in {28, 122, 27}:
        return StorageFull("There is no room left for files. Reads go on; uploads work again once there is room.")
    if isinstance(exc, PermissionDeniedError | UnauthenticatedError):
        return Unavailable("The bucket refuses the server's credentials. An operator must look at them.")
    return Unavailable("Files cannot be reached just now. Nothing was stored; try again.")
