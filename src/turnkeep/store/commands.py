"""Commands go into the store, receipts come out: the values that its verbs take and return."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

from msgspec import UNSET, Struct, UnsetType

from turnkeep.ids import (
    AgentId,
    ConversationId,
    ErasureId,
    FileId,
    MessageId,
    OrgId,
    TurnId,
    UserId,
    WorkspaceId,
)
from turnkeep.model.agents import Snapshot
from turnkeep.model.conversations import Conversation, GivenFields, Kind, TurnSettings
from turnkeep.model.files import File
from turnkeep.model.messages import Message, PublicMessage, Removed
from turnkeep.model.principals import Principal, UserRef
from turnkeep.model.turns import (
    NO_REPORT,
    FinalStatus,
    Held,
    IfBusy,
    Turn,
    TurnError,
    TurnReport,
    TurnStatus,
    WindowCut,
)
from turnkeep_client.wire.account import ErasedCounts, TurnSource
from turnkeep_client.wire.blocks import Block, JsonObject, Usage
from turnkeep_client.wire.events import LogLine, Recorded, Terminal, TurnEvent

Item = TypeVar("Item")

DEFAULT_QUEUE_LIMIT = 20
EXPECTED_TOKENS = 2_000
"""What a turn is expected to consume at least while it runs or waits: a short question, and a few tools."""
ROW_LIMIT = 2_000
"""Rows that one window may hold; a turn whose first rows fell off the end is dropped by the compiler."""


class Page(Struct, Generic[Item], frozen=True, kw_only=True):
    """One page of a list, and the cursor of the next (None: this was the last)."""

    data: tuple[Item, ...]
    next_cursor: str | None = None


class NewConversation(GivenFields, frozen=True, kw_only=True):
    """What a conversation is made with, by itself or by its first turn."""


class ConversationFilter(Struct, frozen=True, kw_only=True):
    """Which conversations a list has. None: all. Runs are listed only if `kind` asks for them. `since` is the earliest
    time of the last change. `is_filed` says whether they are in a folder."""

    external_id: str | None = None
    agent_id: AgentId | None = None
    kind: Kind | None = None
    since: int | None = None
    is_pinned: bool | None = None
    folder: str | None = None
    is_filed: bool | None = None


EVERYTHING = ConversationFilter()


class ConversationWithQueue(Struct, frozen=True, kw_only=True):
    """A conversation, and the messages of the turns that wait in it, in the order in which they will run."""

    conversation: Conversation
    queue: tuple[PublicMessage, ...]


class Claim(Struct, frozen=True, kw_only=True):
    """What a POST asks for.

    `turn_id` is made by the caller, so that a claim whose answer was lost can be recognised. Without
    `conversation_id` the turn creates a conversation from `new`. With `beside` (edit, regenerate) the turn starts
    where that turn started, and replaces it and what followed on the visible chain; one that has not ended yet makes
    the conversation busy like any other.
    """

    principal: Principal
    turn_id: TurnId
    worker: str
    lease_seconds: float
    blocks: tuple[Block, ...]
    conversation_id: ConversationId | None = None
    new: NewConversation = NewConversation()
    beside: TurnId | None = None
    after: TurnId | None = None
    """The turn after which this one must start. If another one is the head by then, the claim is refused."""
    steers: TurnId | None = None
    """The turn of the conversation that these words steer while it runs."""
    settings: TurnSettings | None = None
    """Those of the conversation from which `snapshot` was made. If it has others by then, the claim is refused."""
    attachment_ids: tuple[FileId, ...] = ()
    if_busy: IfBusy = "reject"
    drop_queue: bool = False
    queue_limit: int = DEFAULT_QUEUE_LIMIT
    background: bool = False
    watched_seconds: float | None = None
    source: TurnSource = "api"
    model: str | None = None
    snapshot: Snapshot = Snapshot()
    metadata: JsonObject = {}
    idempotency_key: str | None = None
    request_hash: str | None = None
    expected_cost: float = 0.0
    """What `EXPECTED_TOKENS` cost with this model; 0 for a model without a price."""


class Claimed(Struct, frozen=True, kw_only=True):
    """A turn that exists now. `held` is None while it waits in the queue, and for a repeated idempotency key.

    `question` is the user's row that this claim has written; None for a repeated claim. `turns_before` are the visible
    turns of the conversation before a turn that has started.
    """

    turn: Turn
    user_message_id: MessageId
    held: Held | None
    is_new: bool
    question: Message | None = None
    turns_before: int = 0


class Receipt(Struct, frozen=True, kw_only=True):
    """What was recorded: the number of the last event, and what the holder must know of the turn.

    That is whether a stop was requested, how many files its sandbox has written back so far, and how many messages were
    sent to steer it.
    """

    last_seq: int
    cancel_requested: bool
    files_written: int = 0
    steers: int = 0


class Taken(Struct, frozen=True, kw_only=True):
    """The words that steer a turn, taken into it: its new rows and events, and how the turns ended that had waited with
    these words."""

    rows: tuple[Message, ...] = ()
    events: tuple[TurnEvent, ...] = ()
    ended: tuple[tuple[TurnId, Recorded], ...] = ()


class Settlement(Struct, frozen=True, kw_only=True):
    """How a turn ends.

    `events` are those before the terminal one (steps closed by a stop); `rows` come before `final`. `final` is the
    visible answer (perhaps partial), with its display and usage; None when nothing was said. `cost` is what the usage
    costs; None if the model has no price. `report` is what the engine found out on the way.
    """

    status: FinalStatus
    terminal: Terminal
    usage: Usage
    final: Message | None = None
    rows: tuple[Message, ...] = ()
    events: tuple[TurnEvent, ...] = ()
    logs: tuple[LogLine, ...] = ()
    error: TurnError | None = None
    cost: float | None = None
    report: TurnReport = NO_REPORT

    @property
    def all_rows(self) -> tuple[Message, ...]:
        return self.rows if self.final is None else (*self.rows, self.final)

    @property
    def all_events(self) -> tuple[TurnEvent, ...]:
        return (*self.events, self.terminal)


class Settled(Struct, frozen=True, kw_only=True):
    """The turn as it ended, and the waiting turn that now may run (its lease has already ended: adopt it)."""

    turn: Turn
    promoted: TurnId | None


class Adopted(Struct, frozen=True, kw_only=True):
    """A turn that this worker has taken over: its attempt has risen, and readers were told (`reset`, or `turn`)."""

    turn: Turn
    held: Held
    is_first_start: bool
    """True for a turn from the queue that has not run yet."""
    over_limit: str | None = None
    """Why such a turn must not run: a limit of tokens or cost was used up while it waited."""


class Renewal(Struct, frozen=True, kw_only=True):
    """What a worker learns about one of its turns each second."""

    turn_id: TurnId
    is_held: bool
    cancel_requested: bool
    files_written: int = 0


class DueWork(Struct, frozen=True):
    """What a sweep finds to do: whether turns wait that may run, leases have ended, running turns have lost their
    readers, conversations wait for the search index, an erasure must be continued, or answers are overdue for which a
    turn waits. `erased_at` is when something was last erased, which caches must forget; 0: never. `has_deliveries`:
    something is to be sent to webhooks."""

    has_waiting: bool
    has_expired: bool
    has_unwatched: bool
    has_unindexed: bool
    has_erasures: bool = False
    erased_at: int = 0
    has_deliveries: bool = False
    has_overdue: bool = False


class Backlog(Struct, frozen=True):
    """How many turns do not run, for the metrics: those in a queue behind another turn of their conversation, those
    that may run and that no worker holds, and those that wait for answers. Of the first two also how long the oldest
    has waited, in milliseconds."""

    queued: int
    queued_ms: int
    unheld: int
    unheld_ms: int
    waiting: int


class ConnectionUse(Struct, frozen=True, kw_only=True):
    """How the connections to the database are used: how many are open, how many callers wait for one just now, and how
    many have waited since the start, for how many seconds in all."""

    open: int = 0
    waiting: int = 0
    waited: int = 0
    waited_seconds: float = 0.0


class AttemptOutcome(Struct, frozen=True, kw_only=True):
    """How an attempt to send a delivery has ended: `error` is None if the endpoint took it. Otherwise it is tried again
    after `pause_seconds`, or has failed for good if that is None. `is_gone`: the endpoint wants to hear no more."""

    response_status: int | None = None
    error: str | None = None
    pause_seconds: float | None = None
    is_gone: bool = False


class Appended(Struct, frozen=True, kw_only=True):
    """A whole turn that happened elsewhere: its rows, the final one with display and usage.

    Its events are not stored; they are made from the rows when a reader asks (`model/conversations.py`).
    """

    turn_id: TurnId
    rows: tuple[Message, ...]
    usage: Usage = Usage()
    model: str | None = None
    source: TurnSource = "api"
    started_at: int
    settled_at: int

    @property
    def asked(self) -> tuple[Block, ...]:
        """What the user said first; nothing where no user spoke."""
        return next((row.blocks for row in self.rows if row.role == "user"), ())


class Window(Struct, frozen=True, kw_only=True):
    """Consecutive turns of the visible chain, oldest first, whole; `is_cut` when the row limit cut the oldest.

    `first` is the ordinal of the oldest; None if there are no turns before it. `cut` is the newest that these turns
    report.
    """

    rows: tuple[Message, ...]
    is_cut: bool
    first: int | None = None
    cut: WindowCut | None = None


class UsageFilter(Struct, frozen=True, kw_only=True):
    """The turns of one month whose usage is read: all of them, or those of a day (`2026-11-30`), a user, an agent or a
    model."""

    month: str
    day: str | None = None
    user_id: UserId | None = None
    agent_id: AgentId | None = None
    model: str | None = None


class CountedTurn(Struct, frozen=True):
    """A turn, as usage counts it. The fields are in the order of the query `usage_turns`."""

    id: TurnId
    user_id: UserId | None
    agent_id: AgentId | None
    model: str | None
    source: TurnSource
    status: TurnStatus
    created_at: int
    started_at: int | None
    settled_at: int | None
    input_tokens: int
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: float | None


class TurnTrace(Struct, frozen=True, kw_only=True):
    """Everything that is known of one turn."""

    turn: Turn
    rows: tuple[Message, ...]
    events: tuple[Recorded, ...]
    logs: tuple[LogLine, ...]


class Exported(Struct, frozen=True, kw_only=True):
    """A conversation with everything in it: what export writes and import reads, without loss. `user` is the one to
    whom it belonged; an import belongs to the importer."""

    conversation: Conversation
    turns: tuple[TurnTrace, ...]
    files: tuple[File, ...] = ()
    user: UserRef | None = None


class Purged(Struct, frozen=True, kw_only=True):
    """What a purge erased, and the objects whose bytes must now be erased too."""

    conversations: int
    storage_keys: tuple[str, ...]


class ErasureJob(Struct, frozen=True, kw_only=True):
    """The erasure of a user or of one conversation. `erased_at`: rows and bytes are gone. `done_at`: so is what caches
    and free pages held. `failures` counts the tries that failed, and `problem` says why the last one did."""

    id: ErasureId
    org_id: OrgId
    workspace_id: WorkspaceId
    user_id: UserId | None
    conversation_id: ConversationId | None
    counts: ErasedCounts
    created_at: int
    erased_at: int | None = None
    done_at: int | None = None
    failures: int = 0
    problem: str | None = None


class HiddenTurns(Struct, frozen=True, kw_only=True):
    """The turns of conversations that were hidden: those that still run, and those that waited, with their last
    event."""

    running: tuple[TurnId, ...]
    ended: tuple[tuple[TurnId, Recorded], ...]


TokenPurpose = Literal["setup", "run", "upload"]


class TokenBinding(Struct, frozen=True, kw_only=True):
    """What a one-time token was made for."""

    purpose: TokenPurpose
    turn_id: TurnId
    attempt: int


class RemovedBlocks(Struct, frozen=True, kw_only=True):
    """Blocks of a row that are to be removed."""

    turn_id: TurnId
    turn_sequence: int
    removed: Removed


class ConversationChange(Struct, frozen=True, kw_only=True):
    """Fields to change; None leaves a field as it is. Those in `without` become none."""

    title: str | None = None
    model: str | None = None
    agent_id: AgentId | None = None
    head_turn_id: TurnId | None = None
    metadata: JsonObject | None = None
    folder: str | None = None
    is_pinned: bool | None = None
    is_unread: bool | None = None
    instructions: str | None = None
    temperature: float | None = None
    without: frozenset[Literal["model", "agent_id", "head_turn_id", "folder", "instructions", "temperature"]] = (
        frozenset()
    )
    """Without a head nothing of the conversation is visible."""
    expected_head: TurnId | UnsetType | None = UNSET
    """The turn that must be the head before the change; None: there must be none. Otherwise the change is refused."""
    appended: tuple[Appended, ...] = ()
    """Whole turns to add after the head, in the same transaction."""
    attached: tuple[FileId, ...] = ()
    """Files that these turns bring into the conversation. Rows of theirs name them as attachments."""
    removed: tuple[RemovedBlocks, ...] = ()
    """What models are not sent any more, of turns of any branch. Rows that the conversation does not have are passed
    over. The removal takes an ordinal: a worker that keeps a history sees that the conversation has changed."""


PAGE_BYTES = 4 * 1024 * 1024
"""A page of longer rows has fewer of them. What a client does not read stays in the memory of the server. The functions
of PostgreSQL say the same number (`60_client.sql`)."""


def rows_that_fit(rows: Sequence[Sequence[Any]], limit: int) -> int:
    """How many of these rows a page shows: at most `limit`, of about `PAGE_BYTES` together, and at least one."""
    size = 0
    for place, row in enumerate(rows[:limit]):
        size += sum(len(value if value.isascii() else value.encode()) for value in row if isinstance(value, str))
        if size > PAGE_BYTES:
            return max(1, place)
    return limit


def page_of(items: Sequence[Item], *, limit: int, cursor_of: Callable[[Item], str]) -> Page[Item]:
    """A page from `limit + 1` items that were fetched: the extra one only tells that there is more."""
    shown = tuple(items[:limit])
    return Page(data=shown, next_cursor=cursor_of(shown[-1]) if len(items) > limit else None)
