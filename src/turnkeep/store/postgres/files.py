"""Files on PostgreSQL: the rows of the bags."""

from itertools import islice

from turnkeep.errors import InvalidRequest, NotFound
from turnkeep.ids import ConversationId, FileId, check_id
from turnkeep.model.files import File, FileSource
from turnkeep.model.principals import Principal
from turnkeep.store.checks import KEY_CHARS, check_text
from turnkeep.store.naming import candidates, name_key
from turnkeep.store.postgres.database import Database, owner_of
from turnkeep.store.rows import to_file

STORAGE_KEY_CHARS = 1_024
CANDIDATES = 32
"""So many names are offered at a time; the first that is free is taken under the conversation's lock."""


class PostgresFiles:
    """The rows of the file bags."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_file(
        self,
        principal: Principal,
        file_id: FileId,
        *,
        conversation_id: ConversationId | None,
        name: str,
        mime_type: str,
        size: int,
        storage_key: str,
        source: FileSource = "user",
        sha256: str | None = None,
    ) -> File:
        check_id(file_id, "file")
        if conversation_id is not None:
            check_id(conversation_id, "conv")
        if source not in {"user", "sandbox"}:
            raise InvalidRequest("source must be user or sandbox.")
        check_text(name, "name", limit=KEY_CHARS)
        check_text(mime_type, "mime_type", limit=KEY_CHARS)
        check_text(storage_key, "storage_key", limit=STORAGE_KEY_CHARS)
        _check_bytes(size, sha256)
        org_id, workspace_id, owner = owner_of(principal)
        names = candidates(name)
        while True:
            offered = list(islice(names, CANDIDATES))
            rows = await self._database.write(
                "add_file",
                org_id,
                workspace_id,
                principal.user_id,
                owner,
                file_id,
                conversation_id,
                offered,
                [name_key(each) for each in offered],
                mime_type,
                size,
                sha256,
                storage_key,
                source,
            )
            if rows:
                return to_file(rows[0])

    async def complete_file(self, principal: Principal, file_id: FileId, *, size: int, sha256: str) -> File:
        check_id(file_id, "file")
        _check_bytes(size, sha256)
        rows = await self._database.write("complete_file", *owner_of(principal), file_id, size, sha256)
        return to_file(rows[0])

    async def file(self, principal: Principal, file_id: FileId) -> File:
        check_id(file_id, "file")
        rows = await self._database.read_as(principal, "my_file", file_id)
        if not rows:
            raise NotFound("No such file.")
        return to_file(rows[0])

    async def files(self, principal: Principal, conversation_id: ConversationId) -> list[File]:
        check_id(conversation_id, "conv")
        return [to_file(row) for row in await self._database.read_as(principal, "my_files", conversation_id)]

    async def delete_file(self, principal: Principal, file_id: FileId) -> None:
        check_id(file_id, "file")
        await self._database.write("delete_file", *owner_of(principal), file_id)


def _check_bytes(size: object, sha256: object) -> None:
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size < 2**62:
        raise InvalidRequest("size must be a whole number of bytes.")
    if sha256 is not None:
        check_text(sha256, "sha256", limit=64)
