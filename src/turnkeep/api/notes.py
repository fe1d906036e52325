"""Notes: what the log is told about a request, gathered on its way through."""

from collections.abc import MutableMapping
from typing import Any, cast

Notes = dict[str, Any]

_KEY = "turnkeep.notes"


def begin_notes(scope: object, *, request_id: str) -> Notes:
    notes: Notes = {"request_id": request_id, "route": None, "status": None}
    cast(MutableMapping[str, Any], scope)[_KEY] = notes
    return notes


def notes_of(scope: object) -> Notes:
    """The notes of this request; those of nobody, if it did not come through the front."""
    return cast(MutableMapping[str, Notes], scope).setdefault(_KEY, {})
