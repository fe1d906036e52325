"""The verbs of files: their rows, as their bytes are elsewhere."""

from collections.abc import Sequence
from typing import Protocol

from turnkeep.ids import ConversationId, FileId, TurnId
from turnkeep.model.files import NO_LIMITS, File, NewFile, StorageLimits, TurnBag
from turnkeep.model.principals import Principal
from turnkeep.store.commands import Page


class FileStore(Protocol):
    """The rows of the file bags."""

    async def add_files(
        self, principal: Principal, new: Sequence[NewFile], *, limits: StorageLimits = NO_LIMITS
    ) -> list[File]:
        """All of these rows or none, in order; each `ready` if its sha256 is known, else `pending`. Raises StorageFull
        if with them there are more bytes than `limits` allow.

        A taken name becomes `name-1.ext`, also when many come at once (names are equal if they differ only in case or
        Unicode form).
        """

    async def write_back(
        self, token_hash: bytes, new: Sequence[NewFile], *, limits: StorageLimits = NO_LIMITS
    ) -> list[File]:
        """Spend an upload token, and add these files to the bag of its turn: both or neither.

        Only while the turn runs and the attempt is the token's. Each file's `conversation_id` is that of the turn,
        whatever it says. The turn's holder learns of it from `record` and `renew` (`files_written`). Raises
        Unauthorized for a token that cannot be spent; of several calls at once exactly one succeeds. Raises StorageFull
        as `add_files` does.
        """

    async def complete_file(
        self,
        principal: Principal,
        file_id: FileId,
        *,
        size: int,
        sha256: str,
        mime_type: str | None = None,
        storage_key: str | None = None,
        crc32: int | None = None,
    ) -> File:
        """The bytes are in place: the file is ready. `mime_type` is what they turned out to be, and `storage_key` where
        they are, if not where the row has said until now.

        Of several calls at once one succeeds as a whole. A repeat with the same bytes changes nothing and returns the
        stored file; other bytes raise Conflict.
        """

    async def file(self, principal: Principal, file_id: FileId) -> File: ...

    async def files(self, principal: Principal, conversation_id: ConversationId) -> list[File]: ...

    async def saved_files(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[File]:
        """The workspace's Files, newest first, for everyone in it."""

    async def loose_files(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[File]:
        """The principal's own files that are ready and in no conversation yet, newest first."""

    async def delete_file(self, principal: Principal, file_id: FileId) -> None:
        """Soft. One of the workspace's Files may be deleted by the user who saved it, by an admin and by a service."""

    async def files_by_id(self, principal: Principal, file_ids: Sequence[FileId]) -> list[File]:
        """Those of them that are ready and not deleted, in the principal's workspace, for the engine. Whose
        conversation they are in is not checked."""

    async def ready_files(self, file_ids: Sequence[FileId]) -> set[FileId]:
        """Those of them that are ready and not deleted, in whatever workspace."""

    async def written_files(self, turn_id: TurnId) -> list[File]:
        """What the sandbox of this turn wrote back, in order."""

    async def turn_bag(self, turn_id: TurnId, attempt: int) -> TurnBag:
        """The bag of a turn that runs under this attempt; NotFound for any other. Files in the order they came."""

    async def all_files(self, *, after: FileId | None = None, limit: int = 1_000) -> list[File]:
        """Every row there is in the order of ids, deleted ones too, for the check of the bag."""

    async def discard_files(self, file_ids: Sequence[FileId]) -> list[tuple[FileId, str]]:
        """Erase those of them that are of no use to a message: not complete, or in no conversation and not saved.
        Return ids and storage keys. The caller has checked that they may be erased."""

    async def drop_unfinished(
        self, *, created_before: int, unused_before: int = 0, limit: int = 100
    ) -> list[tuple[FileId, str]]:
        """Erase uploads that began before `created_before` and were never completed, and files from before
        `unused_before` that no conversation took in and that were not saved; return ids and storage keys."""

    async def known_keys(self, storage_keys: Sequence[str]) -> set[str]:
        """Those of them that some row names, deleted rows included."""

    async def pending_files(self, file_ids: Sequence[FileId]) -> set[FileId]:
        """Those of them whose upload is not complete."""
