"""One tool call, from arguments to an outcome. Whatever goes wrong is an outcome too: the turn goes on."""

import asyncio

import msgspec

from turnkeep.engine.cleaning import clean_json, clean_text
from turnkeep.model.json_depth import is_too_deep
from turnkeep.tools.ports import CallContext, Outcome, Toolbox
from turnkeep_client.wire.blocks import JsonValue, ToolUse

KEPT_BYTES = 1024 * 1024
"""So much of a result is kept in the trace; what is beyond is gone, and the result says so."""
SHOWN_CHARS = 16_000
"""So much of a result do readers get. An answer made of many steps must stay a message that one can load."""


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
    except Exception as exc:  # a tool is foreign code; its failure is a result, whatever it is
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
    """What the model is told of an outcome, and whether it is an error. Cut with a note; never silently."""
    if outcome.error is not None:
        return _cut(outcome.error, limit), True
    return _cut(_text_of(outcome.result), limit), False


def shown_to_readers(result: JsonValue) -> JsonValue:
    """The result itself, or the beginning of its text where it is long."""
    text = _text_of(result)
    return result if len(text) <= SHOWN_CHARS else _cut(text, SHOWN_CHARS)


def _text_of(result: JsonValue) -> str:
    return result if isinstance(result, str) else msgspec.json.encode(result).decode()


def _cut(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    note = f"\n[cut: {len(text):,} characters in all]"
    return text[: max(0, limit - len(note))] + note


def _cut_bytes(text: str, limit: int) -> str:
    """What fits into `limit` bytes. Only that much is looked at: a flood must not hold up the event loop."""
    beginning = clean_text(text[:limit])
    if len(text) <= limit and len(beginning.encode()) <= limit:
        return beginning
    kept = beginning.encode()[: limit - 64].decode(errors="ignore")
    return f"{kept}\n[cut: {len(text):,} characters in all]"


def _fit(outcome: Outcome) -> Outcome:
    """The outcome as it can be kept: clean text, JSON that can be written, at most KEPT_BYTES."""
    error = None if outcome.error is None else _cut(clean_text(str(outcome.error)), SHOWN_CHARS)
    kept = _kept(outcome.result)
    return Outcome(result=kept, error=error, sources=outcome.sources, passages=outcome.passages)


def _kept(result: JsonValue) -> JsonValue:
    if isinstance(result, str):
        return _cut_bytes(result, KEPT_BYTES)
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
    """What Python makes of a value that is no JSON. Foreign code takes part in that, too."""
    try:
        return str(result)
    except Exception as exc:
        return f"(a result that cannot be written: {type(exc).__name__})"


def _words_of(exc: BaseException) -> str:
    return _cut(clean_text(f"{type(exc).__name__}: {exc}" if str(exc) else type(exc).__name__), SHOWN_CHARS)
