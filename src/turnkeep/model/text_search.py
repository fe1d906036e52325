"""Text search: tokens, queries, excerpts and passages, the same on every database.

A word is a run of letters, digits and marks, folded for case and width. Scripts written without spaces (Chinese,
Japanese, Korean, Thai …) become pairs of neighbouring characters, and the last character of a run stands alone, so
that one character finds every place as the beginning of a pair. No extension of a database is needed.

Passages are the pieces of a long text that can be found, ranked and cited one by one. A passage ends at a heading, at
the end of a page (a form feed, as the extraction of a PDF leaves it) or of a paragraph. Only a paragraph that is too
long by itself is cut inside, at a space.
"""

import re
import unicodedata
from collections.abc import Iterator

from msgspec import Struct

INDEXED_CHARS = 100_000
"""Maximum number of characters of one message that are searchable. The rest is stored and shown, but not found."""
TOKEN_CHARS = 64
QUERY_TOKENS = 20
SNIPPET_CHARS = 160
CHUNK_CHARS = 2_000
TRIED_CHUNKS = 5
"""How a text is looked through for its snippet."""
PASSAGE_CHARS = 2_000

_UNSPACED = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1100-\u11ff\u3040-\u30ff\u3130-\u318f\u31f0-\u31ff"
    "\u3400-\u4dbf\u4e00-\u9fff\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc\U0001b000-\U0001b16f"
    "\U00020000-\U0003ffff"
)
# Combining marks are no \w in Python, though words of many scripts are written with them.
_MARKS = (
    "\u0300-\u036f\u0483-\u0487\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0900-\u0903\u093a-\u094f\u0951-\u0957"
    "\u0962\u0963\u0980-\u0983\u09bc-\u09cd\u09d7\u0a01-\u0a03\u0a3c-\u0a51\u0a70\u0a71\u0a81-\u0a83\u0abc-\u0acd"
    "\u0b01-\u0b03\u0b3c-\u0b57\u0b82\u0bbe-\u0bcd\u0c00-\u0c04\u0c3e-\u0c56\u0c81-\u0c83\u0cbc-\u0cd6"
    "\u0d00-\u0d03\u0d3b-\u0d4d\u0d57\u0dca-\u0ddf\u1dc0-\u1dff\u20d0-\u20f0\ufe20-\ufe2f"
)
_ASCII_WORD = re.compile("[a-z0-9]+")
_STARTS_UNSPACED = re.compile(rf"[{_UNSPACED}]")
_RUN = re.compile(rf"(?P<unspaced>[{_UNSPACED}]+)|(?:(?![{_UNSPACED}])[^\W_]|[{_MARKS}])+")

# Words so common that a text is not about them. Only the loose search leaves them out, where they would drown the rest.
_COMMON = frozenset(
    re.findall(
        r"\w+",
        """
    a about all am an and any are as at be been but by can could did do does for from had has have he her his how
    i if in into is it its just like me more my no not of on one or our out she so some tell than that the their
    them then there these they this to up us was we were what when where which who why will with would you your
    please find show aber als auch auf aus bei das dem den der des die ein eine einem einen einer es für hat ich
    im ist kann mein mit nicht oder sich sie sind und uns von war wer wie wir wo zu zum zur au aux avec ce ces
    dans de du elle en est et il je la le les leur mais ne nous ou par pas pour que qui sa se son sont sur un une
    vos vous al como con cual del donde el ella esta este ha las lo los más mi o para pero por si sin su sus una y
    """,
    )
)


class SearchQuery(Struct, frozen=True, kw_only=True):
    """Tokens that must all occur: `words` as they are, `prefixes` as the beginning of a token."""

    words: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.words or self.prefixes)

    def matches(self, token: str) -> bool:
        return token in self.words or token.startswith(self.prefixes)


def tokens_of(text: str) -> list[str]:
    """The distinct tokens of a text, in order of appearance."""
    return list(dict.fromkeys(all_tokens_of(text)))


def all_tokens_of(text: str) -> list[str]:
    """Every token of a text as often as it occurs, for an index that ranks by how often."""
    text = text[:INDEXED_CHARS]
    if text.isascii():  # the same tokens in a fifth of the time
        return [word[:TOKEN_CHARS] for word in _ASCII_WORD.findall(text.lower())]
    return [token for _, _, token in _spans(text)]


def parse_query(query: str) -> SearchQuery:
    """What to look for. The last word may be unfinished; a query of punctuation alone is empty and finds nothing."""
    words: dict[str, None] = {}
    prefixes: dict[str, None] = {}
    runs = list(_RUN.finditer(query))[:QUERY_TOKENS]
    for place, run in enumerate(runs, start=1):
        tokens = [token for _, _, token in _tokens_of_run(run)]
        if run["unspaced"]:
            # The lone last character of a run is needed only where it is the whole of it.
            words |= dict.fromkeys(tokens[:-1])
            prefixes |= dict.fromkeys(tokens[-1:] if len(tokens) == 1 else ())
        else:
            (prefixes if place == len(runs) else words).update(dict.fromkeys(tokens))
    return SearchQuery(words=tuple(words), prefixes=tuple(prefixes))


def loosened(query: SearchQuery) -> SearchQuery:
    """The same without the words that say nothing ("what", "is", "der"), for a search by any of the rest."""
    words = tuple(word for word in query.words if word not in _COMMON)
    prefixes = tuple(prefix for prefix in query.prefixes if prefix not in _COMMON)
    return SearchQuery(words=words, prefixes=prefixes) if words or prefixes else query


def excerpt(text: str, query: SearchQuery, *, chars: int) -> str:
    """The part of the text, of at most about `chars` characters, in which most of the query's words occur; the
    beginning where none does. Cut at spaces, with `…` where something was left out."""
    text = text[:INDEXED_CHARS]
    if len(text) <= chars:
        return " ".join(text.split())
    begin = max(0, _densest(_found(text, query)[:2_000], chars) - chars // 6)
    end = min(len(text), begin + chars)
    begin = max(0, end - chars)
    if begin:
        begin = (text.find(" ", begin, begin + 40) + 1) or begin
    if end < len(text):
        space = text.rfind(" ", end - 40, end)
        end = space if space > begin else end
    shown = " ".join(text[begin:end].split())
    return f"{'… ' if begin else ''}{shown}{' …' if end < len(text) else ''}"


def _found(text: str, query: SearchQuery) -> list[tuple[int, str]]:
    """Where the query's words stand, in order. Text that folding leaves as long as it was is looked through as it is,
    which takes a fiftieth of the time that its tokens take."""
    folded = text.casefold()
    if len(folded) != len(text) or not unicodedata.is_normalized("NFKC", folded):
        return [(start, token) for start, _, token in _spans(text) if query.matches(token)]
    whole = [(start, word) for word in query.words for start in _places(folded, word, is_whole=True)]
    begun = [(start, word) for word in query.prefixes for start in _places(folded, word, is_whole=False)]
    return sorted(whole + begun)


def _places(folded: str, word: str, *, is_whole: bool) -> Iterator[int]:
    """Every place of a word, or of words that begin so. Scripts without spaces have no ends of words."""
    is_unspaced = _STARTS_UNSPACED.match(word) is not None
    place = folded.find(word)
    while place >= 0:
        end = place + len(word)
        begins = place == 0 or not folded[place - 1].isalnum()
        ends = not is_whole or end == len(folded) or not folded[end].isalnum()
        if is_unspaced or (begins and ends):
            yield place
        place = folded.find(word, end)


def _densest(found: list[tuple[int, str]], chars: int) -> int:
    """Where the window of `chars` characters begins that holds most distinct tokens (0 where there is none)."""
    best, most = 0, 0
    for place, (start, _) in enumerate(found):
        distinct = {token for other, token in found[place : place + 200] if other < start + chars}
        if len(distinct) > most:
            best, most = start, len(distinct)
    return best


def snippet(text: str, query: SearchQuery) -> str | None:
    """The neighbourhood of the first match, every match in it between `**`; None where nothing matches."""
    text = text[:INDEXED_CHARS]
    first = _first_match(text, query)
    if first is None:
        return None
    begin = max(0, first - SNIPPET_CHARS // 4)
    end = min(len(text), begin + SNIPPET_CHARS)
    near = _spans(text[first : end + 2 * TOKEN_CHARS])
    found = [(first + start, first + stop) for start, stop, token in near if query.matches(token)]
    pieces = ["…" if begin else ""]
    place = begin
    for start, stop in _joined(found):
        if start >= end:
            break
        pieces += [text[place:start], "**", text[start : min(stop, end)], "**"]
        place = min(stop, end)
    pieces += [text[place:end], "…" if end < len(text) else ""]
    return " ".join("".join(pieces).split())


def _first_match(text: str, query: SearchQuery) -> int | None:
    """Where the first word of the query stands. A chunk is taken apart only if it holds such a word, and only a few
    are: a text could hold it everywhere inside of other words."""
    tokens = (*query.words, *query.prefixes)
    tried = looked_at = 0
    for begin in range(0, len(text), CHUNK_CHARS):
        chunk = text[begin : begin + CHUNK_CHARS + 2 * TOKEN_CHARS]
        folded = _folded(chunk)
        looked_at += len(folded)  # some characters become many
        if looked_at > 2 * INDEXED_CHARS:
            return None
        if not any(token in folded for token in tokens):
            continue
        for start, _, token in _spans(chunk):
            # The chunk may begin in the middle of a word.
            is_part = start == 0 < begin and text[begin - 1].isalnum() and not _STARTS_UNSPACED.match(chunk)
            if not is_part and query.matches(token):
                return begin + start
        tried += 1
        if tried == TRIED_CHUNKS:
            return None
    return None


def _spans(text: str) -> Iterator[tuple[int, int, str]]:
    """Every token with the place where it stands."""
    for run in _RUN.finditer(text):
        yield from _tokens_of_run(run)


def _tokens_of_run(run: re.Match[str]) -> Iterator[tuple[int, int, str]]:
    if not run["unspaced"]:
        for token in _words(_folded(run[0])):
            yield run.start(), run.end(), token
        return
    characters = run[0]
    for offset in range(len(characters)):
        pair = characters[offset : offset + 2]
        start = run.start() + offset
        yield start, start + len(pair), _folded(pair)[:TOKEN_CHARS]


def _words(folded: str) -> Iterator[str]:
    """The tokens of one folded word. One character can become several words, or bring signs that divide them: ⑴ is
    (1), and ﷺ is a sentence."""
    if folded.isalnum():
        yield folded[:TOKEN_CHARS]
    else:
        for run in _RUN.finditer(folded):
            yield run[0][:TOKEN_CHARS]


def _folded(token: str) -> str:
    if token.isascii():
        return token.lower()
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", token).casefold())


def _joined(spans: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Overlapping or touching spans as one (pairs of characters overlap by nature)."""
    start, end = spans[0]
    for next_start, next_end in spans[1:]:
        if next_start <= end:
            end = max(end, next_end)
        else:
            yield start, end
            start, end = next_start, next_end
    yield start, end


# --- passages

_HEADING = re.compile(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", re.MULTILINE)
_BREAK = re.compile(r"\f|^(?=#{1,6}[ \t])", re.MULTILINE)
_PARAGRAPH = re.compile(r"\n[ \t]*\n\s*")


class TextPassage(Struct, frozen=True, kw_only=True):
    """The characters from `start` up to `stop`. `place` is the heading above it, or the number of its page."""

    start: int
    stop: int
    place: str | None = None


def split_passages(text: str, *, unit: str = "page", limit: int = PASSAGE_CHARS) -> list[TextPassage]:
    """The pieces in order. Pieces of nothing but space are left out. `unit` is what form feeds separate."""
    is_paged = "\f" in text
    page, heading = 1, None
    passages: list[TextPassage] = []
    for start, stop in _sections(text):
        if start and text[start - 1] == "\f":
            page += 1
        if match := _HEADING.match(text, start, stop):
            heading = match[1].strip()
        place = f"{unit} {page}" if is_paged else heading
        passages += [
            TextPassage(start=begin, stop=end, place=place)
            for begin, end in _pieces(text, start, stop, limit)
            if text[begin:end].strip()
        ]
    return passages


def _sections(text: str) -> Iterator[tuple[int, int]]:
    start = 0
    for match in _BREAK.finditer(text):
        if match.start() > start or match[0]:
            yield start, match.start()
        start = match.end()
    yield start, len(text)


def _pieces(text: str, start: int, stop: int, limit: int) -> Iterator[tuple[int, int]]:
    """As few pieces as the paragraphs allow, each within the limit."""
    while stop - start > limit:
        end = _last_paragraph(text, start, start + limit) or _last_space(text, start, start + limit)
        yield start, end
        start = end
    yield start, stop


def _last_paragraph(text: str, start: int, stop: int) -> int | None:
    ends = [match.end() for match in _PARAGRAPH.finditer(text, start + (stop - start) // 3, stop)]
    return ends[-1] if ends else None


def _last_space(text: str, start: int, stop: int) -> int:
    space = max(text.rfind(" ", start + 1, stop), text.rfind("\n", start + 1, stop))
    return space + 1 if space > start + (stop - start) // 2 else stop
