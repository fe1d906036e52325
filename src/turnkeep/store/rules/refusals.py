"""The refusals that turns share with the rest of the store, each with its words."""

from turnkeep.errors import Forbidden, NotFound
from turnkeep.model.principals import Principal


def no_workspace() -> NotFound:
    return NotFound("No such workspace.")


def no_agent() -> NotFound:
    return NotFound("No such agent.")


def no_conversation() -> NotFound:
    return NotFound("No such conversation.")


def no_turn() -> NotFound:
    return NotFound("No such turn.")


def no_file() -> NotFound:
    return NotFound("No such file.")


def check_service(principal: Principal) -> None:
    """Internal rows are for service keys of the whole org alone."""
    if not principal.is_org_wide:
        raise Forbidden("Only a service key of the whole org may see what is internal.")
