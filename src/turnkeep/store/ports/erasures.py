"""The verbs of erasures: jobs that any worker can continue, and their steps."""

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from turnkeep.ids import ConversationId, ErasureId, FileId, UserId
from turnkeep.model.principals import Principal
from turnkeep.store.commands import ErasureJob, HiddenTurns


class ErasureStore(Protocol):
    """What must be gone for good. Each step may be repeated, also by two workers at once: each thing counts once."""

    async def begin_erasure(
        self,
        principal: Principal,
        *,
        user_id: UserId | None = None,
        conversation_id: ConversationId | None = None,
        lease_seconds: float,
    ) -> ErasureJob:
        """Write down what shall be erased. From now on the user is disabled. The job is leased to the caller.

        Returns the job that is under way, if there is one. NotFound for a conversation that the principal does not
        own; it may be deleted already.
        """

    async def erasure(self, principal: Principal, erasure_id: ErasureId) -> ErasureJob:
        """A job of the principal's workspace. NotFound for another, and for one that ended a month ago."""

    async def take_erasures(self, *, lease_seconds: float, limit: int = 10) -> list[ErasureJob]:
        """Lease jobs that no worker goes on with."""

    async def postpone_erasure(self, erasure_id: ErasureId, *, seconds: float, problem: str | None = None) -> None:
        """Let any worker continue it after this time. With a problem, another try has failed."""

    async def conversations_to_erase(self, job: ErasureJob, *, limit: int = 1_000) -> list[ConversationId]: ...

    async def hide_conversations(self, conversation_ids: Sequence[ConversationId]) -> HiddenTurns:
        """Delete them softly, end turns that wait, and ask those that run to stop."""

    async def files_to_erase(
        self, job: ErasureJob, conversation_ids: Sequence[ConversationId] = (), *, limit: int = 100
    ) -> list[tuple[FileId, str]]:
        """Files of these conversations and of the user, with their storage keys."""

    async def erase_files(self, job: ErasureJob, file_ids: Sequence[FileId]) -> None:
        """Erase these rows, and the texts of which they were the last files. The caller has erased the bytes."""

    def erase_conversations(
        self, job: ErasureJob, conversation_ids: Sequence[ConversationId]
    ) -> AsyncIterator[Sequence[str]]:
        """Erase them with everything in them, but for those in which a turn still runs. In steps of limited size.

        Each step gives the storage keys of files that went with it. Delete their bytes before the next step: if that
        one fails, no row names them any more.
        """

    async def erase_knowledge(self, job: ErasureJob) -> None:
        """Erase the user's pages and tables, the rows that the user added to tables of others, and texts of the org
        whose last file is gone. In steps of limited size. Nothing for the erasure of one conversation."""

    async def erase_decisions(self, job: ErasureJob) -> None:
        """Take the user's name and reasons out of turns of others, about whose calls the user decided. A turn that a
        worker holds is passed over, and is left. In steps of limited size. Nothing for the erasure of one
        conversation."""

    async def close_erasure(self, job: ErasureJob) -> bool:
        """Whether nothing is left. Then the user is gone, and what they used is counted for an anonymous id."""

    async def finish_erasures(self, erasure_ids: Sequence[ErasureId]) -> None:
        """They are done, and do not name whom they erased any more. Jobs that ended a month ago are dropped."""

    async def scrub(self, *, most_bytes: int | None = None) -> bool:
        """Let no free page, index or log of the database hold what was erased. Writes wait meanwhile.

        False, with nothing done, if the database is larger than `most_bytes`. Raises StorageFull, with nothing done, if
        there is too little room on the disk. PostgreSQL does this by itself, in its own time
        (`docs/howto/erase-a-user.md`).
        """
