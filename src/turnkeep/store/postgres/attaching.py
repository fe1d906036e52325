"""Names of attachments in the bag that they join, chosen in the claim's own transaction.

The bag is locked first, so that no name is taken between the choice and the claim.
"""

from collections.abc import Sequence

from msgspec import Struct

from turnkeep.ids import ConversationId, FileId
from turnkeep.model.blocks import FileRef
from turnkeep.store.naming import candidates, name_key
from turnkeep.store.postgres.io.database import Statements


class Named(Struct, frozen=True):
    """The attachments of a message in order: their names in the bag, and what the message says of them."""

    names: tuple[str, ...] = ()
    name_keys: tuple[str, ...] = ()
    refs: tuple[FileRef, ...] = ()


async def name_attachments(
    statements: Statements, owner: Sequence[str | None], conversation_id: ConversationId, file_ids: Sequence[FileId]
) -> Named:
    """Names for these files. Those that do not exist get an empty one: the claim itself refuses them."""
    await statements.fetch("lock_conversation", *owner, conversation_id)
    found = {row[0]: row for row in await statements.fetch("attachments", list(file_ids))}
    taken = {row[0] for row in await statements.fetch("taken_names", conversation_id)}
    names, refs = [], []
    for file_id in file_ids:
        if file_id not in found:
            names.append("")
            continue
        _, name, mime_type, size, bag = found[file_id]
        if bag is None:
            name = next(candidate for candidate in candidates(name) if name_key(candidate) not in taken)
            taken.add(name_key(name))
        names.append(name)
        refs.append(FileRef(file_id=file_id, name=name, mime_type=mime_type, size=size))
    return Named(tuple(names), tuple(map(name_key, names)), tuple(refs))
