"""Attachments of a claim: which files may join the conversation, and the names that they get there."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from turnkeep.errors import InvalidRequest
from turnkeep.ids import ConversationId, FileId
from turnkeep.model.files import FileStatus
from turnkeep.store.rules.names import candidates, name_key
from turnkeep.store.rules.refusals import no_file
from turnkeep_client.wire.blocks import FileRef


class FileFacts(Struct, frozen=True, kw_only=True):
    """A file that the principal may attach."""

    id: FileId
    name: str
    mime_type: str
    size: int
    status: FileStatus
    conversation_id: ConversationId | None = None
    saved_at: int | None = None


class Attachable(Struct, frozen=True, kw_only=True):
    """Those files of a claim that the principal may use, and the name keys of the files in the conversation."""

    files: tuple[FileFacts, ...] = ()
    taken_names: tuple[str, ...] = ()


class Attachment(Struct, frozen=True, kw_only=True):
    """A file under its name in the conversation, and that name as it collides with others."""

    ref: FileRef
    name_key: str


def attach(wanted: Sequence[FileId], facts: Attachable, conversation_id: ConversationId) -> tuple[Attachment, ...]:
    """Name the files in order. Those that are in the conversation already keep their names.

    Raises NotFound for a file that is not among the facts, and InvalidRequest for one that cannot be attached.
    """
    found = {file.id: file for file in facts.files}
    names = set(facts.taken_names)
    return tuple(_attach(_known(found, file_id), names, conversation_id) for file_id in wanted)


def _known(found: Mapping[FileId, FileFacts], file_id: FileId) -> FileFacts:
    if file_id not in found:
        raise no_file()
    return found[file_id]


def _attach(file: FileFacts, taken: set[str], conversation_id: ConversationId) -> Attachment:
    if file.status != "ready":
        raise InvalidRequest(f"File {file.id} is not complete yet. Attach it once its upload has ended.")
    if file.saved_at is not None:
        raise InvalidRequest(
            f"File {file.id} is one of the workspace's Files. Save a copy into the conversation first."
        )
    if file.conversation_id not in {None, conversation_id}:
        raise InvalidRequest(f"File {file.id} belongs to another conversation. Upload it again for this one.")
    name = file.name
    if file.conversation_id is None:
        name = next(candidate for candidate in candidates(name) if name_key(candidate) not in taken)
        taken.add(name_key(name))
    ref = FileRef(file_id=file.id, name=name, mime_type=file.mime_type, size=file.size)
    return Attachment(ref=ref, name_key=name_key(name))
