"""Rules of the directory: checks of names, limits, roles and months, and every refusal."""

import re

from turnkeep.errors import Conflict, InvalidRequest, NotFound
from turnkeep.store.checks import NAME_CHARS, check_text

_MONTH = re.compile(r"\d{4}-(0[1-9]|1[0-2])")


def check_name(value: str) -> str:
    """The name, without spaces around it."""
    return check_text(value, "name", limit=NAME_CHARS).strip()


def check_model(value: str | None) -> str | None:
    return None if value is None else check_text(value, "model", limit=NAME_CHARS)


def check_quota(value: object) -> int | None:
    """A limit of messages or requests."""
    if value is None:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**31:
        raise InvalidRequest("A limit must be a whole number that is not negative, or absent.")
    return value


def check_role(value: str | None) -> None:
    if value not in {None, "member", "admin"}:
        raise InvalidRequest("role must be member or admin.")


def check_month(value: str | None) -> None:
    if value is not None and not _MONTH.fullmatch(value):
        raise InvalidRequest("month must look like 2026-11.")


def check_may_go(is_default: bool, has_conversations: bool, has_files: bool, has_knowledge: bool) -> None:
    """Whether a workspace may be deleted. Raises Conflict that says what is in the way."""
    if is_default:
        raise Conflict("The default workspace of an org cannot be deleted.")
    if has_conversations or has_files or has_knowledge:
        held = "conversations" if has_conversations else "files" if has_files else "pages or tables"
        raise Conflict(f"This workspace holds {held}. Delete them, and wait until they are purged.")


def no_org() -> NotFound:
    return NotFound("No such org.")


def no_key() -> NotFound:
    return NotFound("No such key.")
