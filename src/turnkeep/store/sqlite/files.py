"""Files: the rows of the bags, inside the writer's transaction. Names never collide within a bag."""

from collections.abc import Sequence

from msgspec import Struct, structs

from turnkeep.errors import Conflict, NotFound, Unauthorized
from turnkeep.ids import ConversationId, FileId, MessageId, TurnId
from turnkeep.model.files import File, FileStatus, NewFile, TurnBag
from turnkeep.model.principals import Principal
from turnkeep.store.naming import candidates, name_key
from turnkeep.store.rows import to_file
from turnkeep.store.sqlite.io.session import Session
from turnkeep.store.sqlite.ownership import conversation_for_write, in_workspace, no_file, owner_of


class FoundBytes(Struct, frozen=True, kw_only=True):
    """What was found when somebody looked at the bytes of a pending file, and where they are if not where it says."""

    size: int
    sha256: str
    mime_type: str | None
    storage_key: str | None
    crc32: int | None


class FileRow(NewFile, frozen=True, kw_only=True):
    """A file to add, and where it belongs. It is `pending` as long as its bytes are not complete."""

    status: FileStatus
    message_id: MessageId | None = None
    turn_id: TurnId | None = None

    @classmethod
    def of(cls, new: NewFile, *, turn_id: TurnId | None = None) -> "FileRow":
        return cls(**structs.asdict(new), status="pending" if new.sha256 is None else "ready", turn_id=turn_id)


def add_all(session: Session, principal: Principal, new: Sequence[NewFile]) -> list[File]:
    return [add(session, principal, FileRow.of(each)) for each in new]


def add(session: Session, principal: Principal, new: FileRow) -> File:
    if new.conversation_id is not None:
        conversation_for_write(session, principal, new.conversation_id)
    elif session.row("workspace_exists", in_workspace(principal)) is None:
        raise NotFound("No such workspace.")
    return insert(session, principal, new, created_at=session.now)


def write_back(session: Session, token_hash: bytes, new: Sequence[NewFile]) -> list[File]:
    """Spend the token, and add these files to the bag of its turn."""
    found = session.row("write_back_turn", {"hash": token_hash, "now": session.now})
    if found is None:
        raise Unauthorized("This token is not valid. It may have been spent, or its turn has ended.")
    turn_id, org_id, workspace_id, conversation_id, user_id = found
    owner = Principal(org_id=org_id, workspace_id=workspace_id, user_id=user_id, role="service")
    session.run("mark_token_spent", {"hash": token_hash, "now": session.now})
    session.run("count_written_files", {"turn": turn_id, "count": len(new)})
    rows = [structs.replace(FileRow.of(each, turn_id=turn_id), conversation_id=conversation_id) for each in new]
    return [insert(session, owner, row, created_at=session.now) for row in rows]


def turn_bag(session: Session, turn_id: TurnId, attempt: int) -> TurnBag:
    with session.snapshot():
        found = session.row("bag_of_running_turn", {"turn": turn_id, "attempt": attempt})
        if found is None:
            raise NotFound("This turn has ended, or another attempt runs it.")
        org_id, workspace_id, conversation_id = found
        files = session.rows("ready_files_of_conversation", {"conversation": conversation_id})
    return TurnBag(
        org_id=org_id,
        workspace_id=workspace_id,
        conversation_id=conversation_id,
        files=tuple(to_file(row) for row in files),
    )


def insert(session: Session, principal: Principal, new: FileRow, *, created_at: int) -> File:
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
            "turn": new.turn_id,
            "saved_at": created_at if new.is_saved else None,
            "crc32": new.crc32,
        },
    )[0]
    return to_file(row)


def complete(session: Session, principal: Principal, file_id: FileId, found: FoundBytes) -> File:
    file = _own(session, principal, file_id)
    done = session.rows("complete_file", {"file": file_id, **structs.asdict(found)})
    if done:
        return to_file(done[0])
    if file.sha256 != found.sha256:
        raise Conflict(f"File {file_id} is complete already, with other bytes.")
    return file


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
    row = session.row("own_file", owner_of(principal) | {"file": file_id, "is_admin": principal.role == "admin"})
    if row is None:
        raise no_file()
    return to_file(row)
