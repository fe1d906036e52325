"""Files on the wire."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from turnkeep_client.wire.base import ConversationId, FileId, Id, MessageId, Page, RequestBody, known_words

FileSource = Literal["user", "sandbox"]
TextUnit = Literal["page", "sheet", "slide"]
Size = Annotated[int, Meta(ge=0, le=2**53)]


class File(Struct, frozen=True, kw_only=True):
    """A file, as every answer shows it."""

    id: FileId
    conversation_id: ConversationId | None
    message_id: MessageId | None
    name: str
    mime_type: str
    size: int
    sha256: str | None
    source: Annotated[str, known_words(FileSource)]
    created_at: int


Files = Page[File]


class NewFile(RequestBody, frozen=True, kw_only=True):
    """A file whose bytes will follow by PUT. Without `conversation_id` it joins the first turn that attaches it."""

    name: Annotated[str, Meta(min_length=1, max_length=1_000)]
    size: Size
    mime_type: Annotated[str, Meta(max_length=255)] = ""
    conversation_id: Id | None = None
    through_server: bool = False
    """Whether the address shall be one of the server, also where files are kept in a bucket. For clients that cannot
    reach the bucket."""


class UploadTicket(Struct, frozen=True, kw_only=True):
    """Where the bytes go, until then. The address is the permission; send no key with it."""

    method: Annotated[str, known_words(Literal["PUT"])]
    url: str
    headers: dict[str, str]
    expires_at: int


class PendingUpload(Struct, frozen=True, kw_only=True):
    """A file without its bytes, and where they go."""

    file: File
    upload: UploadTicket


class Completion(RequestBody, frozen=True, kw_only=True):
    """What the bytes must be; what is left out is not compared."""

    size: Size | None = None
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None


class Copy(RequestBody, frozen=True, kw_only=True):
    """Where the copy goes: into the bag of that conversation, or (without one) among the workspace's Files."""

    conversation_id: Id | None = None


class FileText(Struct, frozen=True, kw_only=True):
    """What a file says. Form feeds divide it, and `unit` is what its parts are called; None: it has only one part."""

    file_id: str
    text: str
    unit: Annotated[str, known_words(TextUnit)] | None
