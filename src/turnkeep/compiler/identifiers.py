"""Ids of calls and names of tools, as a provider accepts them.

Our own travel unchanged where they fit. Others are cut and made safe, followed by a hash of the original, so that the
same id gets the same name in every request and two ids never share one.
"""

import hashlib
import re

ANTHROPIC_ID_CHARS = 64
CHAT_ID_CHARS = 40
RESPONSES_ID_CHARS = 64
TOOL_NAME_CHARS = 64

_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")
_HASH_CHARS = 16


class CallNames:
    """Gives each call of one request its name, in order. A second call of the same id gets another name."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._given: set[str] = set()
        self.renamed: list[str] = []

    def take(self, call_id: str) -> str:
        name = safe_name(call_id, limit=self._limit)
        again = 1
        while name in self._given:
            again += 1
            name = _hashed(call_id, f"{call_id}#{again}", self._limit)
        if again > 1:
            self.renamed.append(call_id)
        self._given.add(name)
        return name


def safe_name(name: str, *, limit: int = TOOL_NAME_CHARS) -> str:
    """The name itself if it has only letters, digits, `_` and `-` and fits; else a stable substitute.

    Tools must be declared under the same substitute, so that a model finds its earlier calls among them.
    """
    if name and len(name) <= limit and not _FORBIDDEN.search(name):
        return name
    return _hashed(name, name, limit)


def _hashed(name: str, source: str, limit: int) -> str:
    digest = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    readable = _FORBIDDEN.sub("_", name)[: limit - _HASH_CHARS - 1]
    return f"{readable}_{digest}"
