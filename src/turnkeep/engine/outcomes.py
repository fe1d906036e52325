"""Outcomes: the replies of models and the results of tool calls, made fit to be recorded.

Models and tools may send any text and any JSON. NUL characters, half surrogate pairs and JSON that is nested too deeply
are removed. A failure of a tool is an outcome too: the turn goes on.

Every source of a turn has one number, by which the answer cites it: 1, 2, 3 … in the order of record. A source gets
its number when its outcome is about to be recorded, so events and numbers have the same order, and an attempt that
follows another one counts on from what was recorded.
"""

import asyncio
from collections.abc import Iterable

import msgspec
from msgspec import structs

from turnkeep.ids import CallId
from turnkeep.model.truncation import TOO_DEEP, cut_bytes, cut_chars, is_too_deep, text_of_value
from turnkeep.model.waits import CallAnswer, WaitingCall
from turnkeep.providers.ports import Reply
from turnkeep.tools.ports import CallContext, Outcome, Toolbox
from turnkeep_client.wire.blocks import Block, JsonObject, JsonValue, Reasoning, Text, ToolResult, ToolUse
from turnkeep_client.wire.events import Source

KEPT_BYTES = 1024 * 1024
"""Maximum size of a result in the trace. A longer result is cut, with a note."""
SHOWN_CHARS = 16_000
"""Maximum length of a result as readers get it, so that an answer made of many steps can still be loaded."""
STOPPED_WAIT = "not answered: the turn was stopped"
"""How the error of a call begins that still waited when its turn was stopped."""

_REPLACEMENT = "\ufffd"


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


def of_stopped_wait(call: WaitingCall) -> Outcome:
    """For a call that has waited, and had not begun when the turn was stopped. An answer that was given holds."""
    answer = call.answer
    if answer is None and call.reason == "client_tools":
        return Outcome(error=f"{STOPPED_WAIT} before the client sent a result. It may or may not have been run.")
    if answer is None:
        return Outcome(error=f"{STOPPED_WAIT} before anyone answered this call. It was not run.")
    if answer.verdict == "allow":
        return Outcome(error=f"Allowed{answer.by_whom}, but the turn was stopped before this call ran. It was not run.")
    return answered_by_client(answer) if answer.verdict in {"result", "error"} else denied(call)


def denied(call: WaitingCall) -> Outcome:
    """For a call that was not allowed."""
    answer = call.answer
    if answer is None or answer.verdict == "none":
        if call.reason == "client_tools":
            return Outcome(error="not answered: the client sent no result in time.")
        return Outcome(error="Denied: nobody decided in time. It was not run.")
    if answer.verdict == "allow":
        return Outcome(error=f"Not run: these are not the arguments that were allowed{answer.by_whom}.")
    reason = f": {answer.reason}" if answer.reason else "."
    return Outcome(error=f"Denied{answer.by_whom}{reason}")


def answered_by_client(answer: CallAnswer) -> Outcome:
    """What the caller sent for a call of a client tool."""
    if answer.verdict == "error":
        return _fit(Outcome(error=str(answer.value)))
    return _fit(Outcome(result=answer.value))


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


def clean_text(text: str) -> str:
    if text.isascii():
        return text.replace("\0", _REPLACEMENT)
    # What cannot be encoded becomes "?" bytes; going through surrogatepass first joins pairs that were split.
    fit = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return fit.replace("\0", _REPLACEMENT)


def clean_json(value: JsonValue) -> JsonValue:
    """The same JSON with every text in it cleaned, also its keys. JSON that is nested too deeply becomes a text."""
    if not is_too_deep(value):
        return _cleaned(value)
    try:
        return clean_text(msgspec.json.encode(value).decode())
    except (UnicodeEncodeError, RecursionError):
        return f"({TOO_DEEP}, not shown)"


def clean_reply(reply: Reply) -> Reply:
    """The reply, cleaned. A call whose arguments are nested too deeply counts as malformed."""
    too_deep: dict[CallId, str] = {
        block.id: TOO_DEEP for block in reply.blocks if isinstance(block, ToolUse) and is_too_deep(block.input)
    }
    blocks = tuple(_clean_block(block) for block in reply.blocks)
    return msgspec.structs.replace(reply, blocks=blocks, malformed=too_deep | reply.malformed)


def _cleaned(value: JsonValue) -> JsonValue:
    match value:
        case str():
            return clean_text(value)
        case dict():
            return {clean_text(str(name)): _cleaned(each) for name, each in value.items()}
        case list() | tuple():
            return [_cleaned(each) for each in value]
        case _:
            return value


def _clean_block(block: Block) -> Block:
    match block:
        case Text():
            return Text(text=clean_text(block.text))
        case Reasoning():
            return Reasoning(
                text=clean_text(block.text),
                provider=block.provider,
                signature=block.signature,
                data=block.data,
                item_id=block.item_id,
            )
        case ToolUse():
            cleaned: JsonObject = {} if is_too_deep(block.input) else _cleaned(block.input)
            return ToolUse(id=block.id, name=clean_text(block.name), input=cleaned)
        case ToolResult():
            return ToolResult(call_id=block.call_id, content=clean_text(block.content), is_error=block.is_error)
        case _:
            return block
