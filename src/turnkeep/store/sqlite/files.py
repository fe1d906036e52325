"""Files: the rows of the bags, inside the writer's transaction. Names never collide within a bag."""

from collections.abc import Sequence

from msgspec import Struct

from turnkeep.errors import Conflict, InvalidRequest, NotFound
from turnkeep.ids import ConversationId, FileId, MessageId
from turnkeep.model.blocks import FileRef
from turnkeep.model.files import File, FileSource, FileStatus
from turnkeep.model.principals import Principal
from turnkeep.store.naming import candidates, name_key
from turnkeep.store.rows import to_file
from turnkeep.store.sqlite.owning import conversation_for_write, no_file, owner_of
from turnkeep.store.sqlite.session import Session


class NewFile(Struct, frozen=True, kw_only=True):
    """A file to add. It is `pending` as long as its bytes are not complete."""

    id: FileId
    conversation_id: ConversationId | None
    name: str
    mime_type: str
    size: int
    storage_key: str
    source: FileSource
    sha256: str | None
    status: FileStatus
    message_id: MessageId | None = None


def add(session: Session, principal: Principal, new: NewFile) -> File:
    if new.conversation_id is not None:
        conversation_for_write(session, principal, new.conversation_id)
    elif session.row("workspace_exists", {"org": principal.org_id, "workspace": principal.workspace_id}) is None:
        raise NotFound("No such workspace.")
    return insert(session, principal, new, created_at=session.now)


def insert(session: Session, principal: Principal, new: NewFile, *, created_at: int) -> File:
    name = new.name if new.conversation_id is None else free_name(session, new.conversation_id, new.name)
    row = session.rows(
        "insert_file",
        {
            "id": new.id,
            "org": principal.org_id,
            "workspace": principal.workspace_id,
            "user": principal.user_id,
            "conversation": new.conversation_id,
            "message": new.message_id,
            "name": name,
            "key": name_key(name),
            "mime_type": new.mime_type,
            "size": new.size,
            "sha256": new.sha256,
            "storage_key": new.storage_key,
            "source": new.source,
            "status": new.status,
            "created_at": created_at,
        },
    )[0]
    return to_file(row)


def attach(
    session: Session,
    principal: Principal,
    conversation_id: ConversationId,
    file_ids: Sequence[FileId],
    message_id: MessageId,
) -> tuple[FileRef, ...]:
    """Join these files to a message and to the conversation's bag; return them under the names they got there."""
    return tuple(_attach(session, principal, conversation_id, file_id, message_id) for file_id in file_ids)


def _attach(
    session: Session,
    principal: Principal,
    conversation_id: ConversationId,
    file_id: FileId,
    message_id: MessageId,
) -> FileRef:
    row = session.row("file_for_attach", owner_of(principal) | {"file": file_id})
    if row is None:
        raise no_file()
    file = to_file(row)
    if file.status != "ready":
        raise InvalidRequest(f"File {file.id} is not complete yet. Attach it once its upload has ended.")
    if file.conversation_id not in {None, conversation_id}:
        raise InvalidRequest(f"File {file.id} belongs to another conversation. Upload it again for this one.")
    name = file.name if file.conversation_id else free_name(session, conversation_id, file.name)
    session.run(
        "attach_file",
        {
            "file": file_id,
            "conversation": conversation_id,
            "message": message_id,
            "name": name,
            "key": name_key(name),
        },
    )
    return FileRef(file_id=file.id, name=name, mime_type=file.mime_type, size=file.size)


def complete(session: Session, principal: Principal, file_id: FileId, size: int, sha256: str) -> File:
    file = _own(session, principal, file_id)
    if file.status == "ready":
        if file.sha256 != sha256:
            raise Conflict(f"File {file_id} is complete already, with other bytes.")
        return file
    return to_file(session.rows("complete_file", {"file": file_id, "size": size, "sha256": sha256})[0])


def delete(session: Session, principal: Principal, file_id: FileId) -> None:
    _own(session, principal, file_id)
    session.run("delete_file", {"file": file_id, "now": session.now})


def free_name(session: Session, conversation_id: ConversationId, name: str) -> str:
    """The first of `name`, `name-1`, … that no file of the bag has. The one writer makes this a promise."""
    for candidate in candidates(name):
        taken = session.row("name_is_taken", {"conversation": conversation_id, "key": name_key(candidate)})
        if taken is None:
            return candidate
    raise AssertionError("there is always another number")


def _own(session: Session, principal: Principal, file_id: FileId) -> File:
    row = session.row("own_file", owner_of(principal) | {"file": file_id})
    if row is None:
        raise no_file()
    return to_file(row)
