"""Files on the wire, field for field as the contract lists them."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from turnkeep.api.wire import Asked, Id, Page
from turnkeep.knowledge.texts import Unit
from turnkeep_client.wire.events import WrittenFile

File = WrittenFile
"""A file as every answer shows it."""

Files = Page[File]

Size = Annotated[int, Meta(ge=0, le=2**53)]


class NewFile(Asked, frozen=True, kw_only=True):
    """A file whose bytes will follow by PUT. Without `conversation_id` it joins the first turn that attaches it."""

    name: Annotated[str, Meta(min_length=1, max_length=1_000)]
    size: Size
    mime_type: Annotated[str, Meta(max_length=255)] = ""
    conversation_id: Id | None = None


class Upload(Struct, frozen=True, kw_only=True):
    """Where the bytes go, until then. The address is the permission; send no key with it."""

    method: Literal["PUT"]
    url: str
    headers: dict[str, str]
    expires_at: int


class Promised(Struct, frozen=True, kw_only=True):
    file: File
    upload: Upload


class Completion(Asked, frozen=True, kw_only=True):
    """What the bytes must be; what is left out is not compared."""

    size: Size | None = None
    sha256: Annotated[str, Meta(pattern="^[0-9a-fA-F]{64}$")] | None = None


class Copy(Asked, frozen=True, kw_only=True):
    """Where the copy goes: into the bag of that conversation, or (without one) among the workspace's Files."""

    conversation_id: Id | None = None


class Text(Struct, frozen=True, kw_only=True):
    """What a file says. Form feeds divide it, and `unit` is what its parts are called; None: it has but one."""

    file_id: str
    text: str
    unit: Unit | None
