"""Files: the rows of a bag. The bytes live elsewhere, under `storage_key`."""

from typing import Literal

from msgspec import Struct

from turnkeep.ids import ConversationId, FileId, MessageId, WorkspaceId
from turnkeep.model.blocks import FileRef

FileSource = Literal["user", "sandbox"]
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

    def ref(self) -> FileRef:
        return FileRef(file_id=self.id, name=self.name, mime_type=self.mime_type, size=self.size)
