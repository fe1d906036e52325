"""Malformed values in words: what msgspec says of them, and what it would have taken in their place."""

import re
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from turnkeep.errors import InvalidRequest

_UNKNOWN_WORD = re.compile(r"Invalid (?:enum )?value .* - at `(?P<path>\$[^`]*)`", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(?:\d+|\.\.\.)\]")


def refusal(error: msgspec.ValidationError, kind: Any) -> InvalidRequest:
    """The error for a value that is no `kind`. An unknown word is told together with those that are known there."""
    found = _UNKNOWN_WORD.fullmatch(str(error))
    words = () if found is None else allowed_words(kind, found["path"])
    if not words:
        return InvalidRequest(f"{error}.")
    return InvalidRequest(f"{error}. Allowed: {', '.join(f'`{word}`' for word in words)}.")


def allowed_words(kind: Any, path: str) -> tuple[str, ...]:
    """The words that may stand at a path like `$.message[0].type`; none where it is not words that are expected."""
    *steps, last = [step[1] for step in _STEP.finditer(path)] or [None]
    places = [inspect.type_info(kind)]
    for step in steps:
        places = [inner for place in places for inner in _inside(place, step)]
    words = dict.fromkeys(word for place in places for word in _words_at(place, last))
    return tuple(map(str, words))


def _words_at(place: inspect.Type, field: str | None) -> Iterator[object]:
    for struct in _alternatives(place):
        if isinstance(struct, inspect.StructType) and struct.tag_field == field and struct.tag is not None:
            yield struct.tag
    for inner in _inside(place, field):
        for each in _alternatives(inner):
            if isinstance(each, inspect.LiteralType):
                yield from each.values
            elif isinstance(each, inspect.EnumType):
                yield from (member.value for member in each.cls)


def _inside(place: inspect.Type, field: str | None) -> Iterator[inspect.Type]:
    """What may be found one step further: in that field, or, without one, as an item or a value."""
    for each in _alternatives(place):
        match each:
            case inspect.StructType():
                yield from (inner.type for inner in each.fields if inner.encode_name == field)
            case inspect.ListType() | inspect.VarTupleType() if field is None:
                yield each.item_type
            case inspect.DictType() if field is None:
                yield each.value_type
            case _:
                pass


def _alternatives(place: inspect.Type) -> Iterator[inspect.Type]:
    match place:
        case inspect.UnionType():
            for each in place.types:
                yield from _alternatives(each)
        case inspect.Metadata():
            yield from _alternatives(place.type)
        case _:
            yield place
