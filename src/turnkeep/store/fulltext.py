"""Full text for both databases: passages and rows as tokens, a query in the syntax of either index, and what waits to
be indexed.

Decision: docs/decisions/0107
"""

import re
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from msgspec import Struct

from turnkeep.ids import ConversationId
from turnkeep.model.knowledge import Cell
from turnkeep.model.text_search import SearchQuery, TextPassage, all_tokens_of, loosened, split_passages

CANDIDATES = 2_000
"""Maximum number of matches that are ranked. Of a word with more matches, the newest count."""
FILTERED = 20_000
"""The same where filters, or an order by a column, choose among them."""
ENOUGH = 5
"""With this many results that hold every word, results that hold only some are not looked for."""
RANKED = 200
"""Maximum number of results that a reader can page through."""
TITLE_WEIGHT = 10.0

_QUOTED = re.compile(r"[\\']")


class PassageMatch(Struct, frozen=True):
    """A passage that matches: its owner (a page or a file), and its range in the text."""

    owner: str
    start: int
    stop: int
    place: str | None


class Indexed(Struct, frozen=True):
    """A passage as it is written to an index."""

    start: int
    stop: int
    place: str | None
    title: list[str]
    body: list[str]


def tokens_of_row(cells: Sequence[Cell]) -> list[str]:
    """The tokens by which a row is found: those of all cells, except booleans."""
    return all_tokens_of("\n".join(str(cell) for cell in cells if cell is not None and not isinstance(cell, bool)))


def index_of(title: str, text: str, *, unit: str = "page") -> list[Indexed]:
    """The passages of a text with their tokens. An empty text is found by its title."""
    titled = all_tokens_of(title)
    passages = split_passages(text, unit=unit) or [TextPassage(start=0, stop=0)]
    return [
        Indexed(each.start, each.stop, each.place, titled, all_tokens_of(text[each.start : each.stop]))
        for each in passages
    ]


def loose(query: SearchQuery, found: int) -> SearchQuery | None:
    """The next query, for any of the words, if too few results have all of them."""
    if found >= ENOUGH or len(query.words) + len(query.prefixes) < 2:
        return None
    return loosened(query)


def best_of_each(matches: Iterable[PassageMatch]) -> list[PassageMatch]:
    """The best match of each owner, in the order of their best."""
    best: dict[str, PassageMatch] = {}
    for match in matches:
        best.setdefault(match.owner, match)
    return list(best.values())


def joined(strict: Sequence[PassageMatch], by_any_word: Sequence[PassageMatch]) -> list[PassageMatch]:
    """First the matches with every word, then the others."""
    return list(dict.fromkeys([*strict, *by_any_word]))


def tsvector_text(fields: Iterable[tuple[Sequence[str], str]], scopes: Sequence[str] = ()) -> str:
    """A tsvector in PostgreSQL's own notation: tokens with their places, each under the weight of its field."""
    places: dict[str, list[str]] = {}
    n = 0
    for tokens, weight in fields:
        for token in tokens:
            n += 1
            known = places.setdefault(token, [])
            if len(known) < 200:
                known.append(f"{min(n, 16_383)}{weight}")
    words = [f"'{_quoted(token)}':{','.join(where)}" for token, where in places.items()]
    return " ".join([*words, *(f"'@{scope}'" for scope in scopes)])


def tsquery_text(query: SearchQuery, *, any_word: bool = False) -> str:
    words = [f"'{_quoted(word)}'" for word in query.words]
    prefixes = [f"'{_quoted(prefix)}':*" for prefix in query.prefixes]
    return (" | " if any_word else " & ").join(words + prefixes)


def fts_text(query: SearchQuery, *, any_word: bool = False) -> str:
    """The query in the syntax of FTS5. Tokens hold no quotes, so a quoted token is a plain word."""
    words = [*(f'"{word}"' for word in query.words), *(f'"{prefix}"*' for prefix in query.prefixes)]
    return (" OR " if any_word else " ").join(words)


def _quoted(token: str) -> str:
    return _QUOTED.sub(lambda match: match[0] * 2, token)


CHUNK_TURNS = 50
"""Turns that are indexed by one write, of one conversation or of many."""
SWEPT_WRITES = 40
"""One sweep indexes at most this many chunks. The next sweep goes on."""


class PendingConversation(Struct, frozen=True):
    """A conversation whose turns after `after` and up to `end` have ended, and are not indexed yet. One write indexes
    it up to `last`."""

    id: ConversationId
    after: int
    last: int
    end: int
    title: str | None = None


class PendingIndex:
    """Conversations that wait for the search index, as one look finds them. Many short ones share one write. Of a long
    one only the first turns are written, so that a long import is neither read nor locked whole."""

    def __init__(self, pending: Iterable[PendingConversation]) -> None:
        self._pending = deque(each for each in pending if each.last > each.after)
        self.done = 0
        """How many are up to date now."""
        self.has_more = False
        """Whether one was written that has more turns."""

    def next_group(self) -> list[PendingConversation]:
        """Those that are written next; none when all are done."""
        group: list[PendingConversation] = []
        turns = 0
        while self._pending and turns < CHUNK_TURNS:
            group.append(self._pending.popleft())
            turns += group[-1].last - group[-1].after  # at least as many as there are: ordinals may have gaps
        return group

    def mark(self, group: Iterable[PendingConversation], marked: Collection[ConversationId]) -> None:
        """These of the group were indexed up to their `last`. For the others another worker was quicker."""
        for each in group:
            if each.id in marked:
                self.done += each.last == each.end
                self.has_more = self.has_more or each.last < each.end


async def index_in_chunks(
    find: Callable[[], Awaitable[Iterable[PendingConversation]]],
    write: Callable[[list[PendingConversation]], Awaitable[Collection[ConversationId]]],
    *,
    writes: int | None = None,
) -> int:
    """Index what `find` finds, with at most so many writes; return how many conversations were brought up to date.

    `write` indexes a group, and returns those whose mark was moved. A mark always moves forward, so this ends.
    """
    done = 0
    has_more = True
    while has_more:
        pending = PendingIndex(await find())
        while writes != 0 and (group := pending.next_group()):
            pending.mark(group, await write(group))
            writes = None if writes is None else writes - 1
        done += pending.done
        has_more = pending.has_more and writes != 0
    return done
