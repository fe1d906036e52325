"""A stand-in for a model: offline, deterministic, and it says that it is not a real one.

It answers from rules, streams word by word, reads what is attached, and calls the tools it is offered when asked to
("use search_pages to find …", or a tool's own words). Good enough to try every part of the product without a key.
"""

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from turnkeep.errors import InvalidRequest
from turnkeep.ids import new_call_id
from turnkeep.model.sampling import ALL_OPTIONS, Sampling
from turnkeep.providers.ports import Abilities, Delta, ModelRequest, ProviderEvent, Reply, Target, ToolOffer
from turnkeep_client.wire.blocks import Block, JsonObject, JsonValue, Text, ToolUse, Usage

WORD_SECONDS = 0.012
CHARS_PER_TOKEN = 4
QUOTED_CHARS = 600

_ASKS_FOR_TOOL = re.compile(r"\b(?:use|call|run|try|ask|with|search|read)\b", re.IGNORECASE)
_PLACE = re.compile(r"\b(?:in|for|of|at)\s+([A-ZÀ-Þ][\w'’-]*(?:\s+[A-ZÀ-Þ][\w'’-]*)*)")
_JSON_OBJECT = re.compile(r"\{.*\}", re.DOTALL)
_WORDS = re.compile(r"\S+\s*|\s+")
_FILLER = re.compile(r"^(?:please|the|tool|to|for|and|find|search|look up|about|with|on|of)\b[\s:,]*", re.IGNORECASE)

_HELP = """I am **Turnkeep's demo model**: a set of rules, not a language model. I work offline, so that you can try \
the product without a key. Things you can ask me:

- `show me a table`, `show me code`, `show me maths`, `a list`: to see how answers are drawn
- `write 300 words`: a long answer, to try *stop*, reload and reconnect
- `use NAME …`, `search pages for …`: I call the tool of that name with your words, or with a JSON object that you write
- `What is the weather in Paris?`: I call a tool such as `get_weather`, if I am offered one
- attach a file, and I tell you what I see in it
- in a sandbox: `write a file notes.txt with "Hello"`, ``run `ls -la assets` ``, `read data.csv`; several at once, too

To talk to a real model, set `ANTHROPIC_API_KEY` or `OPENAI_API_KEY` and choose it by name, or set \
`TURNKEEP_MODEL`."""

_TABLE = """Here is a table:

| planet | moons | day |
|---|---:|---|
| Earth | 1 | 24 h |
| Mars | 2 | 24.6 h |
| Jupiter | 95 | 9.9 h |
"""
_CODE = """Here is some code:

```python
def greet(name: str) -> str:
    return f"Hello, {name}!"


print(greet("world"))
```

It prints `Hello, world!`."""
_MATHS = r"""Here is a formula:

$$\int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2}$$

and one in a line: $a^2 + b^2 = c^2$."""
_LIST = """Here is a list:

1. first things first
2. then the second
   - with a detail
   - and another
3. done
"""
_SAMPLES = {"table": _TABLE, "code": _CODE, "math": _MATHS, "list": _LIST}
_IN_OTHER_LANGUAGES = {
    **dict.fromkeys(("tabelle", "tableau", "tabla", "表格", "جدول"), _TABLE),
    **dict.fromkeys(("código", "代码", "شيفرة"), _CODE),
    **dict.fromkeys(("formel", "formule", "fórmula", "公式", "صيغة"), _MATHS),
    **dict.fromkeys(("hier möglich", "pouvez-vous faire", "puedes hacer", "你能做什么", "يمكنك فعله"), _HELP),
}
"""Words of the questions that the page offers in its other languages. The answers are in English."""
_SENTENCE = "every turn is kept and every stream goes on where it stopped because nothing is shown before it is safe"


class Action(Struct, frozen=True):
    """One call, and the text before it."""

    words: str
    tool: str
    input: JsonObject


class DemoProvider:
    """The model called `demo`."""

    name = "demo"
    target: Target = "openai_chat"

    def __init__(self, *, word_seconds: float = WORD_SECONDS) -> None:
        self._word_seconds = word_seconds

    def check_name(self, model: str) -> None:
        if model != self.name:
            raise InvalidRequest(f"{model!r} does not name a model: there is one of this kind, called {self.name}.")

    async def abilities(self, model: str) -> Abilities:
        return Abilities(options=ALL_OPTIONS)

    async def speak(self, request: ModelRequest) -> AsyncGenerator[ProviderEvent, None]:
        request = request.decoded()
        text, calls = answer_to(request)
        text, finish = _within_limits(text, request.sampling)
        for word in _WORDS.findall(text):
            if self._word_seconds:
                await asyncio.sleep(self._word_seconds)
            yield Delta(text=word)
        blocks: tuple[Block, ...] = (*((Text(text=text),) if text else ()), *calls)
        read = sum(len(words) for message in request.messages for words in _texts(message.get("content")))
        usage = Usage(input_tokens=_tokens(read), output_tokens=_tokens(len(text) + 40 * len(calls)))
        yield Reply(blocks=blocks, usage=usage, finish=finish)

    async def models(self) -> list[str]:
        return [self.name]

    async def close(self) -> None:
        pass


def answer_to(request: ModelRequest) -> tuple[str, tuple[ToolUse, ...]]:
    """The demo model's text for this request, and the tools that it calls."""
    results = _results(request.messages)
    asked = _last_user_text(request.messages)
    sampling = request.sampling
    if request.may_call and sampling.must_call and request.tools:
        offer = next((each for each in request.tools if each.name == sampling.tool), request.tools[0])
        return "", (ToolUse(id=new_call_id(), name=offer.name, input=_arguments(asked, offer)),)
    if sampling.output is not None and (results or not _wanted_tools(asked, request.tools)):
        value = _sample(sampling.output.schema or {"type": "object", "properties": {"answer": {}}}, asked)
        return msgspec.json.encode(value).decode(), ()
    if actions := plan(asked, request.tools):
        return _next_action(actions, request)
    if results:
        return _about_results(results), ()
    if request.may_call and (offers := _wanted_tools(asked, request.tools)):
        offers = offers[:1] if sampling.parallel_tool_calls is False else offers
        names = " and ".join(f"`{offer.name}`" for offer in offers)
        calls = tuple(ToolUse(id=new_call_id(), name=offer.name, input=_arguments(asked, offer)) for offer in offers)
        return f"I will use {names}.", calls
    return _plain_answer(asked, request.messages), ()


def _within_limits(text: str, sampling: Sampling) -> tuple[str, Literal["complete", "length"]]:
    """The text up to the first stop word, and within the limit of tokens."""
    for word in sampling.stop or ():
        text = text.partition(word)[0]
    limit = CHARS_PER_TOKEN * (sampling.max_tokens or len(text))
    return (text, "complete") if len(text) <= limit else (text[:limit], "length")


def _sample(schema: JsonObject, words: str) -> JsonValue:
    """A value that fits the schema, as far as its types, choices and required fields go."""
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if isinstance(kind, list):
        kind = kind[0]
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _sample(properties.get(name, {}), words) for name in schema.get("required") or properties}
    if kind == "array":
        return [_sample(schema.get("items", {}), words)] * max(1, schema.get("minItems", 1))
    return None if kind == "null" else _value({**schema, "type": kind}, words)


def _next_action(actions: Sequence[Action], request: ModelRequest) -> tuple[str, tuple[ToolUse, ...]]:
    """The first action without a result; if all have one, a summary of the results."""
    done: list[str] = []
    for message in reversed(request.messages):
        if message.get("role") == "user":
            break
        if message.get("role") == "tool":
            done.insert(0, "\n".join(_texts(message.get("content"))))
    if len(done) < len(actions) and request.may_call:
        action = actions[len(done)]
        return action.words, (ToolUse(id=new_call_id(), name=action.tool, input=action.input),)
    return _about_results(done), ()


def _plain_answer(asked: str, messages: Sequence[JsonObject]) -> str:
    lowered = asked.lower()
    if match := re.search(r"(\d{1,4})\s+words", lowered):
        return _many_words(min(int(match[1]), 2_000))
    for sample, text in _SAMPLES.items():
        if re.search(rf"\b{sample}s?\b", lowered):
            return text
    for word, text in _IN_OTHER_LANGUAGES.items():
        if word in lowered:
            return text
    if not lowered.strip() or re.search(r"\b(help|who are you|what are you|what can you do)\b", lowered):
        return _HELP
    if re.match(r"\W*(hi|hello|hey|good (morning|evening))\b", lowered):
        return "Hello! I am Turnkeep's demo model. Say `help` to see what I can do."
    turns = sum(message.get("role") == "user" for message in messages)
    attached = _attached(messages)
    echo = " ".join(asked.split())[:QUOTED_CHARS]
    seen = f"\n\nI can see {attached}." if attached else ""
    return (
        f"You said: “{echo}”.{seen}\n\nI am the demo model, so I can only repeat and show things; this is message "
        f"{turns} of yours that I can see. Say `help` for what I can do."
    )


def _about_results(results: Sequence[str]) -> str:
    told = "\n\n".join("> " + result[:QUOTED_CHARS].strip().replace("\n", "\n> ") for result in results)
    which = "The tool says" if len(results) == 1 else f"The {len(results)} tools say"
    return f"{which}:\n\n{told}"


def _many_words(count: int) -> str:
    words = _SENTENCE.split()
    text = [words[place % len(words)] for place in range(count)]
    sentences = [" ".join(text[place : place + 12]).capitalize() + "." for place in range(0, count, 12)]
    return " ".join(sentences)


def _wanted_tools(asked: str, offers: Sequence[ToolOffer]) -> list[ToolOffer]:
    """Tools that are named, or whose words all occur after a verb that asks for one."""
    lowered = asked.lower()
    named = [offer for offer in offers if re.search(rf"(?<!\w){re.escape(offer.name.lower())}(?!\w)", lowered)]
    if named:
        return named
    spoken = set(re.findall(r"\w+", lowered))
    if about := [offer for offer in offers if _subject(offer) and _subject(offer) <= spoken]:
        return about[:1]
    asks = bool(_ASKS_FOR_TOOL.search(asked))
    return [offer for offer in offers if asks and _name_words(offer) <= spoken][:1]


def _subject(offer: ToolOffer) -> set[str]:
    """What a tool that only looks something up is about: `get_weather` is about the weather. A question with that word
    in it asks for the tool."""
    verb, *words = re.findall(r"[a-z0-9]+", offer.name.lower())[:4] or [""]
    return set(words) - {"current"} if verb in {"get", "fetch", "lookup"} else set()


def _name_words(offer: ToolOffer) -> set[str]:
    """The words by which users ask for the tool: `search tables` means `search_user_tables`."""
    return set(re.findall(r"[a-z0-9]+", offer.name.lower())) - {"user"}


def _arguments(asked: str, offer: ToolOffer) -> JsonObject:
    """The JSON object in the message if there is one; else its text, for the parameters that take text."""
    if match := _JSON_OBJECT.search(asked):
        try:
            return msgspec.json.decode(match[0], type=dict)
        except (msgspec.DecodeError, RecursionError):
            pass
    spoken = r"[\s_]+".join(re.escape(word) for word in offer.name.replace("_user_", "_").split("_"))
    name = rf"(?:{re.escape(offer.name)}|{spoken})"
    words = re.sub(rf"(?i).*?\b{name}\b", "", asked, count=1, flags=re.DOTALL) or asked
    if _subject(offer) and (place := _PLACE.search(words)):
        words = place[1]
    while (shorter := _FILLER.sub("", words.strip())) != words:
        words = shorter
    properties = offer.input_schema.get("properties", {})
    first_text = [name for name in list(properties)[:1] if properties[name].get("type", "string") == "string"]
    required = offer.input_schema.get("required") or first_text
    return {name: _value(properties.get(name, {}), words) for name in required}


def _value(schema: JsonObject, words: str) -> JsonValue:
    if choices := schema.get("enum"):
        return next((choice for choice in choices if str(choice).lower() in words.lower()), choices[0])
    numbers = re.findall(r"-?\d+(?:\.\d+)?", words)
    match schema.get("type", "string"):
        case "integer":
            return int(float(numbers[0])) if numbers else 1
        case "number":
            return float(numbers[0]) if numbers else 1.0
        case "boolean":
            return True
        case "array":
            return [_value(schema.get("items", {}), words)]
        case "object":
            return {}
        case _:
            return words


def _last_user_text(messages: Sequence[JsonObject]) -> str:
    """The text of the user's last message."""
    for message in reversed(messages):
        if message.get("role") == "user":
            return "\n".join(_texts(message.get("content")))
    return ""


def _results(messages: Sequence[JsonObject]) -> list[str]:
    """Tool results that no reply has mentioned yet."""
    results: list[str] = []
    for message in reversed(messages):
        if message.get("role") != "tool":
            break
        results.insert(0, "\n".join(_texts(message.get("content"))))
    return results


def _attached(messages: Sequence[JsonObject]) -> str:
    content = messages[-1].get("content") if messages else None
    pictures = [part for part in content if part.get("type") == "image_url"] if isinstance(content, list) else []
    return "" if not pictures else "a picture" if len(pictures) == 1 else f"{len(pictures)} pictures"


def _texts(content: JsonValue) -> list[str]:
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        return [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return []


def _tokens(chars: int) -> int:
    return max(1, chars // CHARS_PER_TOKEN)


BOX_TOOLS = frozenset({"shell", "write_file", "read_file", "list_files"})
ASSETS = "assets"

_FILE = r"(?P<file>[\w./-]*\w\.[A-Za-z][A-Za-z0-9]{0,7})"
_RULES = (
    (
        "write",
        rf"\b(?:write|create|make|save)\b[^.\n]*?[`\"“']?\b{_FILE}[`\"”']?"
        r"(?:\s*(?:with|saying|containing|that says|:)(?:\s+the\s+(?:text|words|content))?:?\s*"
        r"(?:[`\"“'](?P<quoted>[^`\"”']*)[`\"”']|(?P<plain>[^\n;]+?))(?=[,.;]?\s+(?:and|then)\b|[;\n]|[,.]?\s*$))?",
    ),
    (
        "run",
        r"\b(?:run|execute)\b(?:\s+(?:the|this|a|shell|command|program))*\s*:?\s*"
        r"(?:`(?P<quoted>[^`]+)`|(?P<plain>[^\n;]+?)(?=[,.]?\s+(?:and then|then)\b|[\n]|[.]?\s*$))",
    ),
    (
        "read",
        r"\b(?:read|open|print|summari[sz]e|look (?:at|into)|what(?:'s| is| does)(?: in)?)\b[^.\n]*?[`\"“']?"
        rf"(?:\b{_FILE}|(?P<attached>\b(?:attachments?|attached files?|files? (?:that )?I (?:have )?attached)\b))",
    ),
    ("list", r"\b(?:list|show|which)\b(?:\s+\w+){0,3}?\s+files\b"),
)


def plan(asked: str, offers: Sequence[ToolOffer]) -> list[Action]:
    """What to do in the box, in the order in which it was asked for; nothing if there is no box."""
    if not {offer.name for offer in offers} >= BOX_TOOLS:
        return []
    found: list[tuple[int, Action]] = []
    taken: list[tuple[int, int]] = []
    for verb, rule in _RULES:
        for match in re.finditer(rule, asked, re.IGNORECASE):
            if any(match.start() < end and start < match.end() for start, end in taken):
                continue  # "write a file with `run ls`" asks for one thing
            taken.append(match.span())
            found.append((match.start(), _action(verb, match)))
    return [action for _, action in sorted(found, key=lambda each: each[0])]


def _action(verb: str, match: re.Match[str]) -> Action:
    match verb:
        case "write":
            path = _path(match["file"])
            content = (match["quoted"] or match["plain"] or f"Written by the demo model: {match['file']}").strip()
            return Action(f"I write `{path}`.", "write_file", {"path": path, "content": f"{content}\n"})
        case "run":
            command = (match["quoted"] or match["plain"] or "").strip()
            return Action(f"I run `{command}`.", "shell", {"command": command})
        case "read" if match["file"]:
            path = _path(match["file"])
            return Action(f"I read `{path}`.", "read_file", {"path": path})
        case "read":
            command = f"head -c 2000 {ASSETS}/*"
            return Action("I look at what is attached.", "shell", {"command": command})
        case _:
            return Action("I look what there is.", "list_files", {"path": "."})


def _path(name: str) -> str:
    """The path of a file: in the folder of the user's files, unless a folder is named."""
    return name if "/" in name else f"{ASSETS}/{name}"
