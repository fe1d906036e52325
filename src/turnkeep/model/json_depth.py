"""How deep JSON may be nested. Models, tools and sandboxes may send any JSON; code that walks it has a finite stack."""

from turnkeep_client.wire.blocks import JsonValue

MAX_DEPTH = 100
"""Levels of lists and objects. Real arguments and results have a dozen; what reads JSON gives up near a thousand."""

TOO_DEEP = f"nested more than {MAX_DEPTH} levels deep"


def is_too_deep(value: JsonValue) -> bool:
    """Whether anything in it lies below MAX_DEPTH levels. Looks no deeper than that, and needs no stack itself."""
    waiting: list[tuple[JsonValue, int]] = [(value, 1)]
    while waiting:
        item, level = waiting.pop()
        if not isinstance(item, dict | list | tuple):
            continue
        if level > MAX_DEPTH:
            return True
        within = item.values() if isinstance(item, dict) else item
        waiting += [(each, level + 1) for each in within if isinstance(each, dict | list | tuple)]
    return False
