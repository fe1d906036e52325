"""The verbs of the store, under one rule for turns: only the holder of the current attempt may write.

Every verb is atomic: it happens whole or not at all. Each may raise `Unavailable` when the database is away
(nothing was written, or what was written is recognised when the verb is repeated) and `StorageFull`. Values that
are too large, malformed or of another tenant are refused before anything is written: `InvalidRequest`, `TooLarge`,
`NotFound` (an id of somebody else does not exist).

Reads for a principal go through the client path, which can see only visible rows of that principal's tenant and
user whatever the query says. Verbs without a principal are the engine's own.
"""

from collections.abc import Sequence
from typing import Protocol

from turnkeep.ids import (
    AgentId,
    CallId,
    ConversationId,
    FileId,
    KeyId,
    OrgId,
    PageId,
    TableId,
    TurnId,
    UserId,
    WorkspaceId,
)
from turnkeep.model.agents import Agent, AgentSpec
from turnkeep.model.conversations import Conversation, Hit
from turnkeep.model.events import LogLine, Recorded, TurnEvent
from turnkeep.model.files import File, NewFile, TurnBag
from turnkeep.model.knowledge import (
    Cell,
    Column,
    FileText,
    Found,
    KnowledgePage,
    KnowledgeTable,
    PageHit,
    PageSummary,
    Row,
    RowHit,
    RowQuery,
    TextHit,
)
from turnkeep.model.messages import Message, Order, PublicMessage
from turnkeep.model.principals import ApiKey, Member, Org, Principal, Workspace
from turnkeep.model.turns import Held, Turn
from turnkeep.model.usage import MonthlyUsage, Usage
from turnkeep.store.commands import (
    ROW_LIMIT,
    Adopted,
    Appended,
    Claim,
    Claimed,
    ConversationChange,
    Exported,
    NewConversation,
    Page,
    Purged,
    Receipt,
    Renewal,
    Settled,
    Settlement,
    TokenBinding,
    TokenPurpose,
    TurnTrace,
    Window,
)


class TurnStore(Protocol):
    """Turns, their rows and their events."""

    async def claim(self, claim: Claim) -> Claimed:
        """Start (or queue) a turn: quota, conversation, turn row, user row and event 1, or none of it.

        Looked at in this order: idempotency key (the same key and hash answers with the same turn, another hash
        raises IdempotencyConflict), the conversation (NotFound), attachments (NotFound; InvalidRequest for one of
        another bag or not ready), busy (`reject` raises ConversationBusy; `enqueue` waits, QueueFull at the limit;
        `interrupt` cancels all that is ahead and waits), quota (QuotaExceeded). A refusal stores nothing.
        """

    async def append(self, principal: Principal, conversation_id: ConversationId, turn: Appended) -> int:
        """Add a whole turn that happened elsewhere; return its ordinal. The same turn id again changes nothing.

        Raises ConversationBusy while a turn runs or waits.
        """

    async def record(
        self,
        held: Held,
        *,
        after: int,
        rows: Sequence[Message] = (),
        events: Sequence[TurnEvent] = (),
        logs: Sequence[LogLine] = (),
    ) -> Receipt:
        """Commit all of it or none, as events `after + 1`, `after + 2`, …

        A repeat of a record whose answer was lost is recognised and acknowledged. Raises LeaseLost when another
        worker has taken the turn over, TurnSettled when it has ended.
        """

    async def settle(self, held: Held, *, after: int, settlement: Settlement) -> Settled:
        """End the turn: rows, display, tokens, counters, head, usage, status and the terminal event, at once.

        Promotes the next waiting turn in the same transaction, with a lease that has already ended. Repeats and
        errors as for `record`.
        """

    async def renew(self, worker: str, held: Sequence[Held], *, lease_seconds: float) -> list[Renewal]:
        """Extend the leases of these turns in one statement; one answer for each, in the same order."""

    async def adopt(
        self, worker: str, *, lease_seconds: float, limit: int = 10, turn_id: TurnId | None = None
    ) -> list[Adopted]:
        """Take over running turns whose lease has ended (or just `turn_id`, if its lease has ended).

        Commits attempt + 1 together with the event that tells readers. `failures` rises when the lease ran out
        without a new event since the last adoption, and returns to 0 when there was one; a hand-over or a
        promotion is not a failure. Turns under adoption by somebody else are passed over. Readers of the worker
        that went silent are forgotten: the turn is not stopped for want of them.
        """

    async def hand_over(self, held: Sequence[Held]) -> None:
        """Let go of these turns, so that any worker may adopt them at once. Those not held are passed over."""

    async def release(self, workers: Sequence[str]) -> None:
        """Let go of every running turn that was last taken under one of these names.

        For adoptions whose answer was lost: who asked does not know what it took, but knows the name it asked under.
        """

    async def promote_waiting(self) -> list[TurnId]:
        """Wherever turns wait and none runs, let the first of them run (as `settle` does)."""

    async def request_cancel(self, principal: Principal, turn_id: TurnId) -> Turn:
        """Ask for a stop. A waiting turn is settled as cancelled here and now, and its message refunded.

        A running turn is only marked: its holder learns of it from `record` and `renew`. Repeats change nothing.
        """

    async def watch(self, turn_ids: Sequence[TurnId], *, seconds: float) -> None:
        """Readers are attached to these turns: `watched_until` moves to that far from now (never backwards)."""

    async def cancel_unwatched(self) -> list[TurnId]:
        """Ask for a stop of every running foreground turn whose `watched_until` has passed; return their ids."""

    async def turn(self, principal: Principal, turn_id: TurnId) -> Turn: ...

    async def running_turn(self, turn_id: TurnId, attempt: int) -> Turn | None:
        """The turn, while it runs under this attempt, with the tokens counted so far: for its sandbox and holder."""

    async def count_usage(self, turn_id: TurnId, attempt: int, usage: Usage, *, call_id: CallId) -> bool:
        """Add these tokens to a turn that runs under this attempt; False if it does not any more.

        For model calls that are not the holder's own. It reads the sum with `running_turn` before it settles. A call
        is counted once, however often it is told of.
        """

    async def events(self, turn_id: TurnId, *, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        """Events later than `after`, in order. Those of an appended or imported turn are told from its rows."""

    async def turn_rows(self, turn_id: TurnId) -> list[Message]:
        """All rows of one turn in order, for its worker."""

    async def window(self, conversation_id: ConversationId, *, turns: int = 20, row_limit: int = ROW_LIMIT) -> Window:
        """The newest turns on the visible chain, the running one included. Flat in the conversation's length.

        These rows are for the model: they come without their display.
        """

    async def trace(self, principal: Principal, turn_id: TurnId) -> TurnTrace:
        """Rows, events and logs of one turn. Forbidden for anyone but a service."""


class ConversationStore(Protocol):
    """Conversations, as lists and as transcripts."""

    async def create_conversation(self, principal: Principal, new: NewConversation) -> Conversation: ...

    async def conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation: ...

    async def conversations(
        self, principal: Principal, *, query: str | None = None, limit: int = 20, cursor: str | None = None
    ) -> Page[Hit]:
        """Newest change first; runs are not listed. `query` searches titles and visible messages: every word of
        it must occur, the last one perhaps as the beginning of a word; works for CJK."""

    async def index_pending(self, *, limit: int = 500) -> int:
        """Make settled turns searchable; return how many conversations were brought up to date."""

    async def change_conversation(
        self, principal: Principal, conversation_id: ConversationId, change: ConversationChange
    ) -> Conversation:
        """`head_turn_id` switches the visible chain to that turn's branch; ConversationBusy while one runs."""

    async def delete_conversation(self, principal: Principal, conversation_id: ConversationId) -> None:
        """Soft, with its files; a turn that runs is asked to stop in the same transaction."""

    async def restore_conversation(self, principal: Principal, conversation_id: ConversationId) -> Conversation:
        """Undo the delete; revives only the files which that delete took."""

    async def purge(self, *, deleted_before: int, limit: int = 100) -> Purged:
        """Erase what was soft-deleted before that moment and in which no turn runs any more."""

    async def transcript(
        self,
        principal: Principal,
        conversation_id: ConversationId,
        *,
        order: Order = "asc",
        limit: int = 50,
        cursor: str | None = None,
    ) -> Page[PublicMessage]:
        """Visible messages along the head's chain. Flat in the conversation's length."""

    async def conversation_trace(
        self, principal: Principal, conversation_id: ConversationId, *, limit: int = 100, cursor: str | None = None
    ) -> Page[Message]:
        """All rows, internal ones included, every branch. Forbidden for anyone but a service."""

    async def export_conversation(self, principal: Principal, conversation_id: ConversationId) -> Exported:
        """Everything, without loss. Forbidden for anyone but a service."""

    async def import_conversation(self, principal: Principal, exported: Exported) -> Conversation:
        """The same conversation again under new ids, owned by the principal; running turns are refused."""


class DirectoryStore(Protocol):
    """Tenants and who may act in them."""

    async def create_org(self, name: str) -> tuple[Org, Workspace]:
        """A tenant with its default workspace."""

    async def orgs(self) -> list[Org]: ...

    async def create_workspace(self, org_id: OrgId, name: str, *, model: str | None = None) -> Workspace: ...

    async def workspace(self, org_id: OrgId, workspace_id: WorkspaceId | None = None) -> Workspace:
        """That workspace of the org, or its default one."""

    async def workspaces(self, org_id: OrgId) -> list[Workspace]: ...

    async def change_workspace(self, workspace: Workspace) -> Workspace:
        """Store name, model and limits of this value."""

    async def delete_workspace(self, org_id: OrgId, workspace_id: WorkspaceId) -> None:
        """Gone with its members, agents and pinned keys. Conflict while it holds conversations (deleted ones too,
        until purged), and for the default one."""

    async def ensure_member(
        self, org_id: OrgId, workspace_id: WorkspaceId, external_id: str, *, role: str | None = None
    ) -> Member:
        """The member with that host id, made on first sight (role `member`); a given role is stored."""

    async def members(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[Member]: ...

    async def add_key(self, key: ApiKey, secret_hash: bytes) -> None:
        """NotFound unless its workspace, if it is pinned to one, is of its org."""

    async def key_by_hash(self, secret_hash: bytes) -> ApiKey | None:
        """The live key with that hash (compared in constant time), or None."""

    async def keys(self, org_id: OrgId, *, workspace_id: WorkspaceId | None = None) -> list[ApiKey]:
        """All keys of the org; with `workspace_id`, those alone that are pinned to it."""

    async def revoke_key(self, org_id: OrgId, key_id: KeyId, *, workspace_id: WorkspaceId | None = None) -> None:
        """NotFound for a key that `keys` with the same arguments would not list."""

    async def create_agent(self, principal: Principal, spec: AgentSpec) -> Agent: ...

    async def agent(self, principal: Principal, agent_id: AgentId) -> Agent: ...

    async def agents(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[Agent]: ...

    async def change_agent(self, principal: Principal, agent_id: AgentId, spec: AgentSpec) -> Agent: ...

    async def delete_agent(self, principal: Principal, agent_id: AgentId) -> None: ...

    async def usage(
        self, principal: Principal, *, month: str | None = None, user_id: UserId | None = None
    ) -> MonthlyUsage:
        """The user's own month; without a user, the workspace's."""

    async def add_token(self, token_hash: bytes, binding: TokenBinding, *, expires_in_seconds: float) -> None: ...

    async def spend_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        """The binding, to exactly one caller, before it expires; None to everybody else."""

    async def peek_token(self, token_hash: bytes, purpose: TokenPurpose) -> TokenBinding | None:
        """The binding that spending would give just now. Nothing is spent, so nothing is promised."""

    async def expire_tokens(self, turn_id: TurnId) -> None:
        """End all unspent tokens of a turn."""


class FileStore(Protocol):
    """The rows of the file bags."""

    async def add_files(self, principal: Principal, new: Sequence[NewFile]) -> list[File]:
        """All of these rows or none, in order; each `ready` if its sha256 is known, else `pending`.

        A taken name becomes `name-1.ext`, also when many come at once (names are equal if they differ only in case or
        Unicode form).
        """

    async def write_back(self, token_hash: bytes, new: Sequence[NewFile]) -> list[File]:
        """Spend an upload token, and add these files to the bag of its turn: both or neither.

        Only while the turn runs and the attempt is the token's. Each file's `conversation_id` is that of the turn,
        whatever it says. The turn's holder learns of it from `record` and `renew` (`files_written`). Raises
        Unauthorized for a token that cannot be spent; of many who come at once exactly one succeeds.
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

        Of many who come at once one decides, for all of it. The same bytes again change nothing and answer with what
        is there; other bytes are a Conflict.
        """

    async def file(self, principal: Principal, file_id: FileId) -> File: ...

    async def files(self, principal: Principal, conversation_id: ConversationId) -> list[File]: ...

    async def saved_files(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[File]:
        """The workspace's Files, newest first, for everyone in it."""

    async def delete_file(self, principal: Principal, file_id: FileId) -> None:
        """Soft. One of the workspace's Files may be deleted by who saved it, by an admin and by a service."""

    async def files_by_id(self, file_ids: Sequence[FileId]) -> list[File]:
        """Those of them that are ready and not deleted, for the engine."""

    async def written_files(self, turn_id: TurnId) -> list[File]:
        """What the sandbox of this turn wrote back, in order."""

    async def turn_bag(self, turn_id: TurnId, attempt: int) -> TurnBag:
        """The bag of a turn that runs under this attempt; NotFound for any other. Files in the order they came."""

    async def all_files(self, *, after: FileId | None = None, limit: int = 1_000) -> list[File]:
        """Every row there is in the order of ids, deleted ones too, for the check of the bag."""

    async def drop_unfinished(self, *, created_before: int, limit: int = 100) -> list[tuple[FileId, str]]:
        """Erase uploads that began before that moment and were never completed; return ids and storage keys."""

    async def known_keys(self, storage_keys: Sequence[str]) -> set[str]:
        """Those of them that some row names, deleted rows included."""

    async def pending_files(self, file_ids: Sequence[FileId]) -> set[FileId]:
        """Those of them whose upload is not complete."""


class KnowledgeStore(Protocol):
    """Pages, tables and the text of files. Everyone in a workspace reads them; who may write them is decided before.

    Searches are by our own tokens: every word must occur (the last perhaps as the beginning of one), best first; where
    that finds too little, texts follow in which some of the words occur.
    """

    async def create_page(self, principal: Principal, *, title: str, content: str) -> KnowledgePage: ...

    async def page(self, principal: Principal, page_id: PageId) -> KnowledgePage: ...

    async def pages(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[PageSummary]:
        """Newest first."""

    async def change_page(
        self, principal: Principal, page_id: PageId, *, title: str | None = None, content: str | None = None
    ) -> KnowledgePage:
        """None leaves a field as it is. It is found by its new words once this returns."""

    async def delete_page(self, principal: Principal, page_id: PageId) -> None: ...

    async def search_pages(
        self, principal: Principal, query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[PageHit]:
        """The best pages, each with an excerpt of at most about `chars` characters from where it matches best."""

    async def create_table(
        self, principal: Principal, *, name: str, columns: Sequence[Column], description: str = ""
    ) -> KnowledgeTable:
        """Raises Conflict if a table of the workspace has this name (names that differ only in case are equal)."""

    async def table(self, principal: Principal, table_id: TableId) -> KnowledgeTable: ...

    async def tables(self, principal: Principal, *, limit: int = 50, cursor: str | None = None) -> Page[KnowledgeTable]:
        """Newest first."""

    async def change_table(
        self,
        principal: Principal,
        table_id: TableId,
        *,
        name: str | None = None,
        description: str | None = None,
        columns: Sequence[Column] | None = None,
    ) -> KnowledgeTable:
        """None leaves a field as it is. Columns keep what they hold by their key; Conflict if the list leaves out a
        column, or gives one another type, while the table has rows."""

    async def delete_table(self, principal: Principal, table_id: TableId) -> None:
        """It is gone at once; its rows are erased bit by bit by `purge_knowledge`."""

    async def add_rows(
        self, principal: Principal, table_id: TableId, rows: Sequence[Sequence[Cell]], *, batch: str
    ) -> list[int]:
        """Add these rows, all or none; return their numbers. The same `batch` again adds nothing, and answers them."""

    async def rows(self, principal: Principal, table_id: TableId, *, after: int = 0, limit: int = 50) -> list[Row]:
        """Rows in the order of their numbers, those greater than `after`. `limit` up to 1,000."""

    async def row(self, principal: Principal, table_id: TableId, number: int) -> Row: ...

    async def change_row(self, principal: Principal, table_id: TableId, number: int, cells: Sequence[Cell]) -> Row: ...

    async def delete_row(self, principal: Principal, table_id: TableId, number: int) -> None: ...

    async def find_rows(
        self, principal: Principal, query: RowQuery, *, table: KnowledgeTable | None, limit: int = 10, offset: int = 0
    ) -> Found[RowHit]:
        """Rows of this table, or of all tables of the workspace (then without filters and sort)."""

    async def begin_import(self, principal: Principal, table_id: TableId, *, import_id: str, count: int) -> int:
        """Reserve the numbers of `count` rows, and return the first. Conflict while another import is under way."""

    async def import_rows(
        self, table: KnowledgeTable, *, import_id: str, first: int, rows: Sequence[Sequence[Cell]]
    ) -> None:
        """Write some of the reserved rows, which nobody sees yet. Conflict if the import was given up."""

    async def finish_import(self, table: KnowledgeTable, *, import_id: str) -> KnowledgeTable:
        """Show all of them, at once."""

    async def abandon_import(self, table: KnowledgeTable, *, import_id: str) -> None:
        """Erase what it wrote, as if it had never been."""

    async def file_texts(self, org_id: OrgId, sha256s: Sequence[str]) -> dict[str, FileText]:
        """What is known of the bytes with these hashes."""

    async def save_file_text(self, org_id: OrgId, text: FileText, *, title: str, unit: str) -> None:
        """Keep the text of some bytes and let it be found. `unit` is what its form feeds separate (page, slide, …)."""

    async def search_file_texts(
        self, org_id: OrgId, sha256s: Sequence[str], query: str, *, limit: int = 10, offset: int = 0, chars: int = 300
    ) -> Found[TextHit]:
        """The best places in these texts. The caller has seen to it that its principal may read the files."""

    async def purge_knowledge(self, *, before: int, silent_before: int | None = None, limit: int = 500) -> int:
        """Erase rows of deleted tables, imports that were silent since `silent_before` (or `before`), the names of
        batches older than `before`, and texts whose last file is gone; return how much was erased, 0 at the end."""


class Store(TurnStore, ConversationStore, DirectoryStore, FileStore, KnowledgeStore, Protocol):
    """One database, all its verbs."""

    async def close(self) -> None: ...
