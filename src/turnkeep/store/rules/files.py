"""Rules of files: the names they get in a bag, who may attach or complete them, and when an upload token is good."""

import unicodedata
from collections.abc import Collection, Iterator, Sequence
from itertools import count, islice
from typing import Any

from msgspec import Struct, structs

from turnkeep.errors import Conflict, NotFound, ReachedLimit, StorageFull, Unauthorized
from turnkeep.ids import ConversationId, FileId, KeyId, MessageId, OrgId, TurnId, UserId, WorkspaceId
from turnkeep.model.files import NAME_BYTES, File, NewFile, StorageLimits
from turnkeep.model.principals import Principal

OFFERED = 32
"""How many names of a file are looked up at first. Where all of them are taken, four times as many are looked up."""


class FoundBytes(Struct, frozen=True, kw_only=True):
    """What was found in the bytes of a pending file, and where they are if not where the row says."""

    size: int
    sha256: str
    mime_type: str | None
    storage_key: str | None
    crc32: int | None


class FileOwner(Struct, frozen=True, kw_only=True):
    """The owner of new files: the tenant, the user, the turn whose sandbox wrote them, and the key they came with."""

    org_id: OrgId
    workspace_id: WorkspaceId
    user_id: UserId | None
    turn_id: TurnId | None = None
    key_id: KeyId | None = None


def owner_by(principal: Principal) -> FileOwner:
    """The owner of files that this principal brings."""
    return FileOwner(
        org_id=principal.org_id,
        workspace_id=principal.workspace_id,
        user_id=principal.user_id,
        key_id=principal.key_id,
    )


class StoredBytes(Struct, frozen=True):
    """The bytes that a scope stores, new files included, and its limit. The fields are in the order of the query
    `stored_bytes`. `used` is None where neither the scope nor the server sets a limit."""

    scope: str
    scope_id: str
    limit: int | None
    used: int | None


class Upload(Struct, frozen=True):
    """What is known of an upload token. The fields are in the order of the query `upload`."""

    now: int
    used_at: int | None
    expires_at: int
    attempt: int
    turn_id: TurnId
    turn_status: str
    turn_attempt: int
    org_id: OrgId
    workspace_id: WorkspaceId
    user_id: UserId | None
    conversation_id: ConversationId
    deleted_at: int | None
    known_files: int
    """How many of the files that come with the token belong to its turn already."""
    key_id: KeyId | None

    @property
    def owner(self) -> FileOwner:
        return FileOwner(
            org_id=self.org_id,
            workspace_id=self.workspace_id,
            user_id=self.user_id,
            turn_id=self.turn_id,
            key_id=self.key_id,
        )


def is_to_be_spent(upload: Upload, count: int) -> bool:
    """Whether this token is spent for these files now. False: they were written with it before, and the answer was
    lost. Raises Unauthorized for a token that cannot be spent."""
    if upload.used_at is not None:
        if upload.known_files != count:
            raise token_refused()
        return False
    is_current = upload.turn_status == "running" and upload.turn_attempt == upload.attempt
    if upload.expires_at <= upload.now or not is_current or upload.deleted_at is not None:
        raise token_refused()
    return True


def names_to_look_up(names: Sequence[str], offered: int) -> list[str]:
    """The keys of the first names that each of these files might get."""
    return [name_key(each) for name in names for each in islice(candidates(name), offered)]


def free_names(names: Sequence[str], taken: Collection[str], offered: int) -> list[str] | None:
    """A name of its own for each file, in order: the first of `name`, `name-1`, … that is free.

    `taken` are keys of names in the bag. None if all names offered to a file are taken; then more must be looked up.
    """
    used = set(taken)
    chosen = []
    for name in names:
        free = next((each for each in islice(candidates(name), offered) if name_key(each) not in used), None)
        if free is None:
            return None
        used.add(name_key(free))
        chosen.append(free)
    return chosen


def file_record(
    new: NewFile, owner: FileOwner, *, name: str, now: int, message_id: MessageId | None = None
) -> dict[str, Any]:
    """The columns of a new file. It is `ready` if its sha256 is known, else `pending`."""
    record = structs.asdict(new) | structs.asdict(owner)
    is_saved = record.pop("is_saved")
    return record | {
        "name": name,
        "name_key": name_key(name),
        "message_id": message_id,
        "status": "pending" if new.sha256 is None else "ready",
        "created_at": now,
        "saved_at": now if is_saved else None,
    }


def imported_files(files: Sequence[File], principal: Principal) -> list[dict[str, Any]]:
    """The columns of the files of an imported conversation, under names of their own."""
    owner = owner_by(principal)
    names = free_names([file.name for file in files], (), len(files) + 1) or []
    return [
        structs.asdict(file) | structs.asdict(owner) | {"name": name, "name_key": name_key(name), "saved_at": None}
        for file, name in zip(files, names, strict=True)
    ]


def same_file(stored: File | None, new: NewFile) -> File:
    """The file that is there under the id of a new one: the same, sent again. Raises Conflict for another."""
    if stored is None or stored.storage_key != new.storage_key:
        raise Conflict("This file id is taken.")
    return stored


def same_bytes(stored: File, sha256: str) -> File:
    """The file that is complete already. Raises Conflict if it has other bytes."""
    if stored.sha256 != sha256:
        raise Conflict(f"File {stored.id} is complete already, with other bytes.")
    return stored


def no_turn_bag() -> NotFound:
    return NotFound("This turn has ended, or another attempt runs it.")


def token_refused() -> Unauthorized:
    return Unauthorized("This token is not valid. It may have been spent, or its turn has ended.")


def check_stored(limits: StorageLimits, stored: Sequence[StoredBytes]) -> None:
    """Raises StorageFull if the new files, which are counted already, are too many for a scope or for the server."""
    of_server = {"user": limits.user_bytes, "workspace": limits.workspace_bytes}
    for each in stored:
        for scope, most in ((each.scope, each.limit), ("server", of_server.get(each.scope) or None)):
            if most is not None and (each.used or 0) > most:
                raise StorageFull(
                    f"{_WHOSE[each.scope]} may have {most:,} bytes together. {_ROOM}",
                    limit=ReachedLimit(scope=scope, name="stored_byte_limit", value=most, used=each.used or 0),
                )


_WHOSE = {
    "workspace": "The files of this workspace",
    "user": "Your files",
    "key": "The files that came with this API key, or with keys that it made,",
}
_ROOM = "Delete some: there is room again once they are erased, after the retention period."


def ids_of(new: Sequence[NewFile]) -> list[FileId]:
    return [each.id for each in new]


EXTENSION_BYTES = 200
"""What is longer is no extension: it would leave no room for the rest of the name."""


def name_key(name: str) -> str:
    """The name as it collides. On some systems, names that differ only in case or Unicode form are the same file."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFKC", name).casefold())


def candidates(name: str) -> Iterator[str]:
    """`report.pdf`, `report-1.pdf`, `report-2.pdf`, … Where the number would make it too long, the stem is cut."""
    yield name
    stem, dot, extension = name.rpartition(".")
    if not stem or len(extension.encode()) > EXTENSION_BYTES:
        stem, dot, extension = name, "", ""
    for number in count(1):
        ending = f"-{number}{dot}{extension}"
        yield _cut(stem, NAME_BYTES - len(ending.encode())) + ending


def _cut(text: str, limit: int) -> str:
    """The beginning of a text that fits into `limit` bytes, in whole characters."""
    return text.encode()[:limit].decode(errors="ignore")


def no_file() -> NotFound:
    return NotFound("No such file.")
