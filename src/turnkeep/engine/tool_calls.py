"""One tool call, from its arguments to an outcome that can be recorded. A failure is an outcome too: the turn goes
on.

Every source of a turn has one number, by which the answer cites it: 1, 2, 3 … in the order of record. A source gets
its number when its outcome is about to be recorded, so events and numbers have the same order, and an attempt that
follows another one counts on from what was recorded.
"""

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec import structs

from turnkeep.engine.sanitizer import clean_json, clean_text
from turnkeep.model.json_depth import is_too_deep
from turnkeep.model.truncation import cut_bytes, cut_chars, text_of_value
from turnkeep.tools.ports import CallContext, Outcome, Toolbox
from turnkeep_client.wire.blocks import JsonValue, ToolUse
from turnkeep_client.wire.events import Source

KEPT_BYTES = 1024 * 1024
"""Maximum size of a result in the trace. A longer result is cut, with a note."""
SHOWN_CHARS = 16_000
"""Maximum length of a result as readers get it, so that an answer made of many steps can still be loaded."""


async def call_tool(toolbox: Toolbox, call: ToolUse, context: CallContext, *, default_timeout: float) -> Outcome:
    """Run the tool once, within its time. Never raises, except when it is cancelled."""
    tool = toolbox.get(call.name)
    if tool is None:
        names = ", ".join(spec.name for spec in toolbox.specs()) or "none"
        return Outcome(error=f"There is no tool called {call.name!r}. Available: {names}.")
    seconds = tool.spec.timeout_seconds or default_timeout
    timer = asyncio.timeout(seconds)
    try:
        async with timer:
            outcome = await tool.call(call.input, context)
    except Exception as exc:  # a tool is foreign code; any failure of it is a result
        if isinstance(exc, TimeoutError) and timer.expired():
            return Outcome(error=f"The tool did not answer within {seconds:g} seconds.")
        return Outcome(error=_words_of(exc))
    return _fit(outcome)


def outcome_unknown() -> Outcome:
    """For a call that had begun when its worker died, and may not be repeated."""
    return Outcome(
        error="outcome_unknown: the call was interrupted. It may or may not have taken effect; check before "
        "you repeat it."
    )


def stopped() -> Outcome:
    """For a call that was under way when the turn was stopped."""
    return Outcome(error="outcome_unknown: the turn was stopped before this call ended.")


def told_to_model(outcome: Outcome, *, limit: int) -> tuple[str, bool]:
    """The text of an outcome for the model, and whether it is an error. A long text is cut with a note."""
    if outcome.error is not None:
        return cut_chars(outcome.error, limit), True
    return cut_chars(text_of_value(outcome.result), limit), False


def shown_to_readers(result: JsonValue) -> JsonValue:
    """The result itself, or the beginning of its text where it is long."""
    text = text_of_value(result)
    return result if len(text) <= SHOWN_CHARS else cut_chars(text, SHOWN_CHARS)


def _fit(outcome: Outcome) -> Outcome:
    """The outcome as it can be stored: clean text, valid JSON, at most KEPT_BYTES."""
    error = None if outcome.error is None else cut_chars(clean_text(str(outcome.error)), SHOWN_CHARS)
    kept = _kept(outcome.result)
    return Outcome(result=kept, error=error, sources=outcome.sources, passages=outcome.passages)


def _kept(result: JsonValue) -> JsonValue:
    if isinstance(result, str):
        # Only its beginning is processed: a very long result must not hold up the event loop.
        of_chars = len(result) if len(result) > KEPT_BYTES else None
        return cut_bytes(clean_text(result[:KEPT_BYTES]), KEPT_BYTES, of_chars=of_chars)
    try:
        encoded = msgspec.json.encode(result)
    except UnicodeEncodeError:
        return _kept(clean_json(result))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return _kept(_written(result))
    if len(encoded) > KEPT_BYTES or is_too_deep(result):
        return _kept(encoded.decode())
    return clean_json(msgspec.json.decode(encoded))


def _written(result: object) -> str:
    """The text of a value that is not JSON. `str` may run foreign code, which may fail too."""
    try:
        return str(result)
    except Exception as exc:
        return f"(a result that cannot be written: {type(exc).__name__})"


def _words_of(exc: BaseException) -> str:
    return cut_chars(clean_text(f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__), SHOWN_CHARS)


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
