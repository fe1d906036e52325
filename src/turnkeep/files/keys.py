"""Keys of objects. They are made of ids and of a known extension: a name that somebody gave never reaches the store."""

from msgspec import Struct

from turnkeep.files.media_types import BY_EXTENSION
from turnkeep.files.names import extension_of
from turnkeep.ids import ConversationId, FileId, WorkspaceId

INCOMING = "incoming"
"""Where promised bytes wait until somebody has looked at them."""
PREFIXES = ("bag", "files", INCOMING)


class Folder(Struct, frozen=True):
    """Where the objects of one bag are, or those of the workspace's Files."""

    workspace_id: WorkspaceId
    conversation_id: ConversationId | None
    is_saved: bool = False

    @property
    def path(self) -> str:
        if self.is_saved:
            return f"files/{self.workspace_id}"
        return f"bag/{self.workspace_id}/{self.conversation_id or 'loose'}"


def storage_key(folder: Folder, file_id: FileId, name: str, *, attempt: str = "") -> str:
    """Where the bytes of a file live. With `attempt` a place that nobody else has, until the row names it."""
    extension = extension_of(name)
    known = extension if extension in BY_EXTENSION else "bin"
    return f"{folder.path}/{file_id}{attempt and '-'}{attempt}.{known}"


def incoming_key(file_id: FileId) -> str:
    return f"{INCOMING}/{file_id}"
