"""Items of foreign lists, on their way to becoming rows; and what all forms check alike."""

from msgspec import DecodeError, Struct, json

from turnkeep.errors import InvalidRequest
from turnkeep.ids import CallId
from turnkeep_client.wire.blocks import Block, Image, JsonObject, JsonValue, Role, Text


class Item(Struct, frozen=True, kw_only=True):
    """One message: who said it, what, and when if it says so."""

    role: Role
    blocks: tuple[Block, ...]
    ts: int | None = None


def is_empty(item: Item) -> bool:
    """Whether nothing is said: no blocks, or blank texts alone. A result without words still says that a tool ran."""
    return all(isinstance(block, Text) and not block.text.strip() for block in item.blocks)


class Remarks:
    """What a reader of the result should know: pieces that have no equal here."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def left_out(self, index: int, kind: JsonValue) -> Text:
        """A line of text in the place of something that cannot be kept."""
        self.said.append(f"Item {index}: a piece of type {kind!r} has no equal here; a line of text stands for it.")
        return Text(text=f"[{kind}: left out]")

    def add(self, index: int, remark: str) -> None:
        self.said.append(f"Item {index}: {remark}")


def call_id(value: JsonValue, index: int, field: str) -> CallId:
    if not isinstance(value, str):
        raise InvalidRequest(f"Item {index}: `{field}` must be a text, not {value!r}.")
    return CallId(value)


def tool_name(value: JsonValue, index: int) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"Item {index}: the name of a tool must be a text, not {value!r}.")
    return value


def arguments(value: JsonValue, index: int, remarks: Remarks) -> JsonObject:
    """Arguments as an object. A text that is not JSON (a model was cut off in it) is kept as what it is."""
    if isinstance(value, str):
        try:
            value = json.decode(value) if value.strip() else {}
        except DecodeError:
            remarks.add(index, "the arguments of a call are not JSON; they are kept as text under `arguments`.")
            return {"arguments": value}
    if value is None:
        return {}
    if not isinstance(value, dict):
        remarks.add(index, "the arguments of a call are not an object; they are kept under `arguments`.")
        return {"arguments": value}
    return value


def parts_of(content: JsonValue, index: int) -> list[JsonObject]:
    """Content as a list of parts: a text is one text part, nothing is none."""
    if content is None:
        return []
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if isinstance(content, list):
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in content]
        if all(isinstance(part, dict) for part in parts):
            return parts
    raise InvalidRequest(f"Item {index}: `content` must be a text or a list of parts.")


def text_of(part: JsonObject, index: int, field: str = "text") -> str:
    text = part.get(field)
    if not isinstance(text, str):
        raise InvalidRequest(f"Item {index}: a part of type {part.get('type')!r} needs a text in `{field}`.")
    return text


def image_at(url: JsonValue, index: int) -> Image:
    """A picture from its address, which may hold the picture itself (`data:`)."""
    if not isinstance(url, str):
        raise InvalidRequest(f"Item {index}: a picture needs an address.")
    if url.startswith("data:"):
        head, _, data = url.partition(",")
        return Image(media_type=head[5:].partition(";")[0], data=data)
    return Image(media_type="image/*", url=url)


def words_of(content: JsonValue, index: int, remarks: Remarks) -> str:
    """A tool's result as text. Other things in it are named."""
    if content is None:
        return ""
    if not isinstance(content, str | list):
        return json.encode(content).decode()
    words: list[str] = []
    for part in parts_of(content, index):
        text = part.get("text")
        words.append(text if isinstance(text, str) else remarks.left_out(index, part.get("type")).text)
    return "\n".join(words)
