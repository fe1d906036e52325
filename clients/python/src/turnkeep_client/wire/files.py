"""Files on the wire."""

from typing import Literal

from msgspec import Struct

from turnkeep_client.wire.ids import ConversationId, FileId, MessageId

FileSource = Literal["user", "sandbox"]


class File(Struct, frozen=True, kw_only=True):
    """A file, as every answer shows it."""

    id: FileId
    conversation_id: ConversationId | None
    message_id: MessageId | None
    name: str
    mime_type: str
    size: int
    sha256: str | None
    source: FileSource
    created_at: int
