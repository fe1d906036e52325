"""Bytes for tests, as they travel: in blocks, from an async iterator."""

from collections.abc import AsyncIterator, Iterable

from turnkeep.files.ports import Objects


async def blocks(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def in_pieces(data: bytes, size: int = 65_536) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


async def whole(source: AsyncIterator[bytes]) -> bytes:
    return b"".join([block async for block in source])


async def keys(objects: Objects, *prefixes: str) -> set[str]:
    """Every key below these folders."""
    found: set[str] = set()
    for prefix in prefixes or ("bag", "files", "incoming"):
        async for page in objects.list(prefix):
            found |= {each.key for each in page}
    return found


def joined(pieces: Iterable[bytes]) -> bytes:
    return b"".join(pieces)
