"""Keys of objects: ids and a known extension. A name that a person chose is never part of a key."""

from msgspec import Struct

from turnkeep.files.media_types import BY_EXTENSION
from turnkeep.files.names import extension_of
from turnkeep.ids import ConversationId, FileId, WorkspaceId

INCOMING = "incoming"
"""The prefix for uploads that were not inspected yet."""
PREFIXES = ("bag", "files", INCOMING)


class Folder(Struct, frozen=True):
    """The place of the objects of one bag, or of the workspace's Files."""

    workspace_id: WorkspaceId
    conversation_id: ConversationId | None
    is_saved: bool = False

    @property
    def path(self) -> str:
        if self.is_saved:
            return f"files/{self.workspace_id}"
        return f"bag/{self.workspace_id}/{self.conversation_id or 'loose'}"


def storage_key(folder: Folder, file_id: FileId, name: str, *, attempt: str = "") -> str:
    """The key of a file's object. `attempt` makes it unique to one attempt of completing an upload."""
    extension = extension_of(name)
    known = extension if extension in BY_EXTENSION else "bin"
    return f"{folder.path}/{file_id}{attempt and '-'}{attempt}.{known}"


def incoming_key(file_id: FileId) -> str:
    return f"{INCOMING}/{file_id}"
