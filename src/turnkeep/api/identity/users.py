"""Users as conversations, traces and exports show them."""

from collections.abc import Iterable, Mapping

from turnkeep.ids import UserId
from turnkeep.model.principals import Principal, UserRef
from turnkeep.store.ports import DirectoryStore

UserRefs = Mapping[UserId | None, UserRef]


async def shown_users(store: DirectoryStore, principal: Principal, user_ids: Iterable[UserId | None]) -> UserRefs:
    """The users with these ids, without those who are gone. A user who asks for their own things costs no query."""
    known: dict[UserId | None, UserRef] = {}
    if principal.user_id is not None and principal.user is not None:
        known[principal.user_id] = principal.user
    missing = {user_id for user_id in user_ids if user_id is not None and user_id not in known}
    if missing:
        found = await store.members_by_id(principal.org_id, sorted(missing))
        known |= {member.id: member.shown for member in found}
    return known
