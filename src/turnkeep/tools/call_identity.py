"""For whom a tool works: placeholders in what an agent declares, and signed headers of each call.

`{{user.external_id}}` and its like are replaced in addresses, values of headers and constant arguments. The value of a
placeholder comes from the turn, never from the model.
"""

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Self
from urllib.parse import quote

from turnkeep.errors import InvalidRequest
from turnkeep.ids import ConversationId
from turnkeep.model.principals import Principal
from turnkeep.tools.ports import CallContext
from turnkeep.trace_context import TRACEPARENT
from turnkeep_client.tool_calls import CALL, CONVERSATION, SIGNATURE, TURN, USER, WORKSPACE, signature_of
from turnkeep_client.wire.blocks import JsonObject, JsonValue

PLACEHOLDERS = ("user.external_id", "user.id", "workspace.id", "conversation.id")
HEADER_PREFIX = "turnkeep-"
"""Headers that begin so are set by the server alone."""

PLACEHOLDER = re.compile(r"\{\{\s*([^{}]*?)\s*\}\}")
_ORIGIN = re.compile(r"[^:/?#]*:?/*[^/?#]*")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


def check_placeholders(owner: str, texts: Iterable[str]) -> None:
    """Raises InvalidRequest for a placeholder that does not exist."""
    for text in texts:
        for name in PLACEHOLDER.findall(text):
            if name not in PLACEHOLDERS:
                known = ", ".join(f"{{{{{each}}}}}" for each in PLACEHOLDERS)
                raise InvalidRequest(f"`{owner}` has an unknown placeholder {{{{{name[:60]}}}}}. There are: {known}.")


def check_url_placeholders(owner: str, url: str) -> None:
    """Raises InvalidRequest for an unknown placeholder, and for one in the host: secrets must not go to a host that
    depends on the user."""
    check_placeholders(owner, [url])
    origin = _ORIGIN.match(url)
    if origin is not None and PLACEHOLDER.search(origin[0]):
        raise InvalidRequest(f"The `url` of `{owner}` has a placeholder in its host. Use it in the path or the query.")


def has_placeholders(texts: Iterable[str]) -> bool:
    return any(PLACEHOLDER.search(text) for text in texts)


def texts_in(value: JsonValue) -> Iterable[str]:
    """Every text inside a JSON value, without the names of fields."""
    match value:
        case str():
            yield value
        case list():
            for item in value:
                yield from texts_in(item)
        case dict():
            for item in value.values():
                yield from texts_in(item)


class Placeholders:
    """The values of the placeholders in one conversation. A value that is missing is an error, not an empty text."""

    def __init__(self, values: Mapping[str, str | None]) -> None:
        self._values = values

    @classmethod
    def of(cls, principal: Principal, conversation_id: ConversationId | None) -> Self:
        user = principal.user
        return cls(
            {
                "user.external_id": None if user is None else user.external_id,
                "user.id": principal.user_id,
                "workspace.id": principal.workspace_id,
                "conversation.id": conversation_id,
            }
        )

    def used_in(self, texts: Iterable[str]) -> dict[str, str]:
        """The placeholders of these texts with their values. Raises InvalidRequest if one has none."""
        names = {name for text in texts for name in PLACEHOLDER.findall(text) if name in self._values}
        return {name: self._value(name) for name in sorted(names)}

    def in_text(self, text: str) -> str:
        """Raises InvalidRequest if a value is missing."""
        return PLACEHOLDER.sub(lambda found: self._filled(found, lambda value: value), text)

    def in_header(self, text: str) -> str:
        """Raises InvalidRequest if a value is missing, or cannot stand in a header."""
        return PLACEHOLDER.sub(lambda found: self._filled(found, header_value), text)

    def in_url(self, text: str) -> str:
        """Values are escaped, so that none changes the path or adds a parameter. Raises InvalidRequest as above."""
        return PLACEHOLDER.sub(lambda found: self._filled(found, _url_part), text)

    def in_json(self, value: JsonValue) -> Any:
        match value:
            case str():
                return self.in_text(value)
            case list():
                return [self.in_json(item) for item in value]
            case dict():
                return {name: self.in_json(item) for name, item in value.items()}
            case _:
                return value

    def _filled(self, found: re.Match[str], fit: Callable[[str], str]) -> str:
        return fit(self._value(found[1])) if found[1] in self._values else found[0]

    def _value(self, name: str) -> str:
        value = self._values[name]
        if value is None:
            raise InvalidRequest(f"This needs {{{{{name}}}}}, and there is none: the turn was asked for no user.")
        return value


def header_value(value: str) -> str:
    """Raises InvalidRequest for a line break or another control character."""
    if _CONTROL.search(value):
        raise InvalidRequest("The id of the user has a control character in it, so no header can carry it.")
    return value


def _url_part(value: str) -> str:
    if value in {".", ".."}:
        raise InvalidRequest("The id of the user consists of dots, so it cannot stand in an address.")
    return quote(value, safe="")


class CallSigner:
    """Makes the headers that say for whom and in which trace a call is made, signed with the agent's secret. An agent
    from before these secrets has none until an admin makes one; its calls are not signed."""

    def __init__(self, open_secret: Callable[[], str | None]) -> None:
        self._open_secret = open_secret

    def headers(self, context: CallContext, body: bytes) -> dict[str, str]:
        """Raises InvalidRequest for a user whose id cannot be sent, SecretUnreadable for a secret of a lost key."""
        user = "" if context.user is None else header_value(context.user.external_id)
        headers = {USER: user} if user else {}
        if context.traceparent is not None:
            headers[TRACEPARENT] = context.traceparent
        headers |= {
            WORKSPACE: context.principal.workspace_id,
            CONVERSATION: context.conversation_id,
            TURN: context.turn_id,
            CALL: context.call_id,
        }
        secret = self._open_secret()
        if secret is not None:
            moment = int(time.time())
            headers[SIGNATURE] = f"t={moment},v1={signature_of(secret, moment, context.call_id, user, body)}"
        return headers


def context_meta(context: CallContext) -> JsonObject:
    """The same facts, for the `_meta` of an MCP call."""
    return {
        "user": None if context.user is None else context.user.external_id,
        "workspace": context.principal.workspace_id,
        "conversation": context.conversation_id,
        "turn": context.turn_id,
        "call": context.call_id,
    }


def without_arguments(schema: JsonObject, constant: Collection[str]) -> JsonObject:
    """The schema that the model sees: it does not know the arguments that the agent fixes."""
    if not constant:
        return schema
    shown = dict(schema)
    if isinstance(shown.get("properties"), dict):
        shown["properties"] = {name: kind for name, kind in shown["properties"].items() if name not in constant}
    if isinstance(shown.get("required"), list):
        shown["required"] = [name for name in shown["required"] if name not in constant]
    return shown
