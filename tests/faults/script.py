"""A model without memory: what it says is a function of the messages that it is shown.

So it says the same on whatever worker it is asked. A question reads `key: look pay left+right`: one word for each
round of tools, calls of one round joined by `+`. The key stands in the arguments of every call, so that a tool which
ran twice is noticed even where the second call had another id. For a key such as `w200` the answer is longer by so
many words.
"""

import re
from collections.abc import Awaitable, Callable

from turnkeep.providers.ports import ModelRequest
from turnkeep.providers.scripted import Call, Line, Pause, Script, Until
from turnkeep_client.wire.blocks import JsonObject

BOX_COMMAND = "echo in the box:"
"""How a command begins that the model runs in a sandbox. Nothing else does."""
_FILLER = ("wörter", "और", "文字。", "plain", "🙂🙂", "words")
_QUESTION = re.compile(r"(\S+):((?: \S+)*)\s*")


def question(key: str, *rounds: str) -> str:
    return f"{key}: {' '.join(rounds)}".strip()


def model(
    *, gate: Callable[[], Awaitable[object]] | None = None, pace: float = 0.0
) -> Callable[[ModelRequest], Script]:
    """The model; it begins to speak when `gate` lets it, and then says a word every `pace` seconds."""

    def speak(request: ModelRequest) -> Script:
        opening: list[Line] = [] if gate is None else [Until(gate)]
        return [*opening, *_paced(reply_to(request), pace)]

    return speak


def reply_to(request: ModelRequest) -> list[Line]:
    asked_at = max(place for place, message in enumerate(request.messages) if message["role"] == "user")
    key, rounds = _asked(request.messages[asked_at])
    since = request.messages[asked_at + 1 :]
    done = sum(bool(message.get("tool_calls")) for message in since)
    if done == len(rounds):
        return list(_words(_summary(key, since)))
    calls = [_call(name, f"{key}/{done}/{name}") for name in rounds[done].split("+")]
    return [*_words(f"Round {done} of {key}: let me see."), *calls]


def _call(name: str, key: str) -> Call:
    return Call(name, {"command": f"{BOX_COMMAND} {key}"} if name == "shell" else {"key": key})


def _asked(message: JsonObject) -> tuple[str, list[str]]:
    found = _QUESTION.fullmatch(message["content"])
    assert found is not None, message
    return found[1], found[2].split()


def _summary(key: str, since: list[JsonObject]) -> str:
    results = [message["content"] for message in since if message["role"] == "tool"]
    unknown = sum("outcome_unknown" in result for result in results)
    return f"{_filler(key)}That was {key}: {len(results)} results, {unknown} of them unknown."


def _filler(key: str) -> str:
    wanted = re.match(r"w(\d+)", key)
    return "".join(f"{_FILLER[n % len(_FILLER)]} " for n in range(int(wanted[1]))) if wanted else ""


def _words(text: str) -> list[str]:
    return re.findall(r"\S+\s*", text)


def _paced(lines: list[Line], pace: float) -> list[Line]:
    return [each for line in lines for each in (Pause(pace), line)] if pace else lines
