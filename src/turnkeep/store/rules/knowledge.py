"""Rules of pages and of the text of files: limits, checks, what a search shows, and every refusal."""

from collections.abc import Mapping, Sequence

from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.model.knowledge import (
    FileText,
    Hit,
    PageHit,
    TextHit,
)
from turnkeep.model.text_search import SearchQuery, excerpt, parse_query
from turnkeep.store.checks import NAME_CHARS, check_limit, check_text
from turnkeep.store.fulltext import Place

CONTENT_CHARS = 1_000_000
QUERY_CHARS = 1_000


def check_page(title: str | None, content: str | None) -> None:
    if title is not None:
        check_text(title, "title", limit=NAME_CHARS)
    if content is not None:
        check_text(content, "content", limit=CONTENT_CHARS, allow_empty=True)


def changed_page(before: Sequence[str] | None, title: str | None, content: str | None) -> tuple[str, str]:
    """Title and content after a change; None leaves one as it is. Raises NotFound if there was no page."""
    if before is None:
        raise no_page()
    old_title, old_content = before
    return old_title if title is None else title, old_content if content is None else content


def check_search(query: str, limit: int, offset: int) -> SearchQuery:
    check_text(query, "query", limit=QUERY_CHARS, allow_empty=True)
    check_limit(limit)
    if offset < 0:
        raise InvalidRequest("offset must be a whole number that is not negative.")
    return parse_query(query)


def part_of(items: Sequence[Hit], *, limit: int, offset: int) -> tuple[Sequence[Hit], int | None]:
    """The items from `offset` on, and where the next part begins."""
    end = offset + limit
    return items[offset:end], end if end < len(items) else None


def page_hits(
    places: Sequence[Place], texts: dict[str, tuple[str, str]], query: SearchQuery, chars: int
) -> tuple[PageHit, ...]:
    """The pages as their reader sees them; `texts` are their titles and contents. Those not seen are left out."""
    return tuple(
        PageHit(
            page_id=place.owner,  # type: ignore[arg-type]
            title=texts[place.owner][0],
            place=place.place,
            excerpt=excerpt(texts[place.owner][1][place.start : place.stop], query, chars=chars),
        )
        for place in places
        if place.owner in texts
    )


def text_hits(
    places: Sequence[Place], texts: Mapping[str, FileText], query: SearchQuery, chars: int
) -> tuple[TextHit, ...]:
    return tuple(
        TextHit(
            sha256=place.owner,
            place=place.place,
            excerpt=excerpt(texts[place.owner].text[place.start : place.stop], query, chars=chars),
        )
        for place in places
        if place.owner in texts
    )


def no_page() -> NotFound:
    return NotFound("No such page.")
