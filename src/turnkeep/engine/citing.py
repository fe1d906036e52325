"""Citations: every source of a turn has one number, by which the answer cites it: 1, 2, 3 … in the order of record.

A number is given when an outcome is about to be recorded, so that the order of the events is that of the numbers, and
an attempt that goes on after another counts on from what was recorded.
"""

from collections.abc import Iterable

from msgspec import structs

from turnkeep.engine.cleaning import clean_text
from turnkeep.tools.ports import Outcome
from turnkeep_client.wire.events import Source


class Citations:
    """The sources of one turn so far."""

    def __init__(self, recorded: Iterable[Source] = ()) -> None:
        self._numbers: dict[Source, int] = {}
        for source in recorded:
            self._number(source)

    def numbered(self, outcome: Outcome) -> Outcome:
        """The outcome with its passages in the text, and every source under its number."""
        if not outcome.sources and not outcome.passages:
            return outcome
        texts = [] if outcome.result is None else [outcome.result if isinstance(outcome.result, str) else ""]
        cited: dict[Source, None] = {}
        for passage in outcome.passages:
            source = self._cited(passage.source)
            cited[source] = None
            texts.append(clean_text(passage.rendered(source.number or 0)))
        cited |= dict.fromkeys(self._cited(source) for source in outcome.sources)
        result = "\n\n".join(texts) if outcome.passages else outcome.result
        return Outcome(result=result, error=outcome.error, sources=tuple(cited))

    def _cited(self, source: Source) -> Source:
        place = None if source.place is None else clean_text(source.place)
        clean = structs.replace(source, title=clean_text(source.title), snippet=clean_text(source.snippet), place=place)
        return structs.replace(clean, number=self._number(clean))

    def _number(self, source: Source) -> int:
        """The same place has the same number, however often it is found."""
        return self._numbers.setdefault(structs.replace(source, number=None), len(self._numbers) + 1)
