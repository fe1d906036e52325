"""Files: the rows of a bag. The bytes live elsewhere, under `storage_key`."""

import re
from typing import Literal

from msgspec import Struct

from turnkeep.ids import ConversationId, FileId, MessageId, OrgId, TurnId, WorkspaceId
from turnkeep_client.wire.blocks import FileRef
from turnkeep_client.wire.files import File as WireFile
from turnkeep_client.wire.files import FileSource

NAME_BYTES = 240
"""The longest name, in bytes of UTF-8. Most systems allow 255; the rest leaves room for a suffix."""
MEDIA_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}/[A-Za-z0-9][A-Za-z0-9!#$&^_.+-]{0,126}")
"""`type/subtype`, both as tokens. Anything else could end a header or begin another."""
FileStatus = Literal["pending", "ready"]
"""`pending`: promised, its bytes not yet complete; no message may name it."""


class File(Struct, frozen=True, kw_only=True):
    """One file of a conversation's bag, or of the workspace's Files when `conversation_id` is None and it was saved."""

    id: FileId
    workspace_id: WorkspaceId
    conversation_id: ConversationId | None
    message_id: MessageId | None
    name: str
    mime_type: str
    size: int
    sha256: str | None
    storage_key: str
    source: FileSource
    status: FileStatus
    created_at: int
    turn_id: TurnId | None = None
    """The turn whose sandbox wrote it back."""
    saved_at: int | None = None
    """When it was saved into the workspace's Files."""
    crc32: int | None = None
    """The checksum that a zip wants, where it was computed when the bytes came."""
    purpose: str | None = None
    """What a client of OpenAI's API said that it is for."""

    def ref(self) -> FileRef:
        return FileRef(file_id=self.id, name=self.name, mime_type=self.mime_type, size=self.size)

    def as_wire(self) -> WireFile:
        """The file as the API shows it, without where its bytes are."""
        return WireFile(
            id=self.id,
            conversation_id=self.conversation_id,
            message_id=self.message_id,
            name=self.name,
            mime_type=self.mime_type,
            size=self.size,
            sha256=self.sha256,
            source=self.source,
            created_at=self.created_at,
        )


class NewFile(Struct, frozen=True, kw_only=True):
    """A file to add: `ready` if its sha256 is known, else `pending`. With `is_saved` it joins the workspace's Files."""

    id: FileId
    conversation_id: ConversationId | None
    name: str
    mime_type: str
    size: int
    storage_key: str
    source: FileSource = "user"
    sha256: str | None = None
    is_saved: bool = False
    crc32: int | None = None
    purpose: str | None = None


class TurnBag(Struct, frozen=True, kw_only=True):
    """The bag as the sandbox of one running turn may see it."""

    org_id: OrgId
    workspace_id: WorkspaceId
    conversation_id: ConversationId
    files: tuple[File, ...]


class StorageLimits(Struct, frozen=True, kw_only=True):
    """How many bytes the files of one user, and of one workspace, may have together. 0: any number."""

    user_bytes: int = 0
    workspace_bytes: int = 0


NO_LIMITS = StorageLimits()
