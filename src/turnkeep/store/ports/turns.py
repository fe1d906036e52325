"""The verbs of turns. Only the holder of the current attempt may write."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from turnkeep.ids import AgentId, CallId, ConversationId, OrgId, TurnId, WorkspaceId
from turnkeep.model.messages import Message, Order
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Feedback, Held, RatedTurn, Rating, Turn
from turnkeep.model.waits import CallAnswer, Wait, WaitReason
from turnkeep.store.commands import (
    ROW_LIMIT,
    Adopted,
    Appended,
    Backlog,
    Claim,
    Claimed,
    DueWork,
    Page,
    Receipt,
    Renewal,
    Settled,
    Settlement,
    Taken,
    TurnTrace,
    Window,
)
from turnkeep_client.wire.blocks import JsonObject, Usage
from turnkeep_client.wire.events import LogLine, Recorded, TurnEvent


class TurnStore(Protocol):
    """Turns, their rows and their events. A turn that waits for answers keeps its conversation busy. No worker holds
    it, and only its deadline can pass."""

    async def claim(self, claim: Claim) -> Claimed:
        """Start (or queue) a turn: quota, conversation, turn row, user row and event 1, or none of it.

        Checked in this order: idempotency key (the same key and hash answers with the same turn, another hash
        raises IdempotencyConflict), the conversation (NotFound), attachments (NotFound; InvalidRequest for one of
        another bag or not ready), busy (`reject` raises ConversationBusy; `enqueue` waits, QueueFull at the limit;
        `interrupt` asks the running turn to stop and waits in front of the others, which keep their order; one that
        replaces a waiting turn cancels it), the head (Conflict if it is not `after`), quota (QuotaExceeded). A refusal
        stores nothing.
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

    async def take_steers(self, held: Held, *, after: int, sequence: int) -> Taken:
        """Take the words that steer the turn into it, in their order: rows from `sequence` on, and events after
        `after`. The queued turns that had these words end. Repeats and errors as for `record`.
        """

    async def settle(self, held: Held, *, after: int, settlement: Settlement) -> Settled:
        """End the turn: rows, display, tokens, counters, head, usage, status, terminal event and outbox, at once.

        Promotes the next waiting turn in the same transaction, with a lease that has already ended. Repeats and
        errors as for `record`.
        """

    async def wait(self, held: Held, *, after: int, events: Sequence[TurnEvent], wait: Wait) -> bool:
        """Record these events, and let the turn wait from now on. The holder loses it, unless the wait is `held_by` its
        attempt. An entry of the outbox tells of it. False, with nothing written, if a stop was requested. Repeats and
        errors as for `record`.
        """

    async def answer_calls(
        self, principal: Principal, turn_id: TurnId, answers: Mapping[CallId, CallAnswer], *, reason: WaitReason
    ) -> Turn:
        """Store the answers of calls that wait for this `reason`. With the last one the turn goes on: any worker may
        adopt it. The first answer of a call holds. A repeat changes nothing, but what it remembers is remembered.

        Decisions are recorded as an event too, unless a worker holds the turn, which then records them itself.

        Raises NotFound for a call that does not wait, and AlreadyDecided for another answer than the first.
        """

    async def end_overdue_waits(self) -> list[TurnId]:
        """Let turns go on whose answers did not come in time; return their ids. Any worker may adopt them."""

    async def end_held_wait(self, turn_id: TurnId, attempt: int) -> Turn | None:
        """End the wait of a turn that this attempt holds, if its time is over by the clock of the store: what has no
        answer gets none any more. None, with nothing written, if the time is not over or the turn does not wait."""

    async def spend_answer(self, turn_id: TurnId, attempt: int, call_id: CallId, digest: str) -> bool:
        """Let a call begin that a person has allowed with the arguments of this digest, in a turn that this attempt
        holds. False if it was not allowed, has begun before, or the turn has ended or shall stop: of any number of
        requests, one is told True."""

    async def trusted_tools(self, conversation_id: ConversationId) -> frozenset[str]:
        """The tools whose calls need no decision in this conversation (`model.waits.trust_of`)."""

    async def renew(
        self,
        held: Sequence[Held],
        *,
        lease_seconds: float,
        watched: Sequence[TurnId] = (),
        watch_seconds: float = 0.0,
    ) -> list[Renewal]:
        """Extend the leases of these turns in one statement; one answer for each, in the same order. The same statement
        does what `watch` does for the `watched` turns."""

    async def adopt(
        self,
        worker: str,
        *,
        lease_seconds: float,
        limit: int = 10,
        turn_id: TurnId | None = None,
        only_handed_over: bool = False,
    ) -> list[Adopted]:
        """Take over running turns whose lease has ended (or just `turn_id`, if its lease has ended). With
        `only_handed_over`, only those that a worker let go or that come out of the queue.

        Commits attempt + 1 together with the event that tells readers. `failures` rises when the lease ran out
        without a new event since the last adoption, and returns to 0 when there was one; a hand-over or a
        promotion is not a failure. Turns that another worker is adopting are skipped. Readers of the worker
        that went silent are forgotten: their absence does not stop the turn.
        """

    async def hand_over(self, held: Sequence[Held]) -> None:
        """Let go of these turns, so that any worker may adopt them at once. Those not held are passed over."""

    async def release(self, workers: Sequence[str]) -> None:
        """Let go of every running turn that was last taken under one of these names.

        For adoptions whose answer was lost: the worker knows the name of the adoption, but not the turns.
        """

    async def due_work(self, *, queue: bool = True) -> DueWork:
        """What there is to do for `promote_waiting`, `adopt`, `cancel_unwatched` and `index_pending`, in one look.

        The look is cheap, and reads no more when there are more conversations, or more turns that wait for answers. It
        reads every turn in a queue, so look there only from time to time (`queue`).
        """

    async def backlog(self) -> Backlog:
        """How many turns do not run, and how long they have waited. It reads those turns alone."""

    async def hold_sweep(self, worker: str, *, seconds: float) -> bool:
        """Take the sweep lease for this long, or keep it. False while another worker has it.

        One worker holds it at a time. It does the work that no other worker needs to do as well.
        """

    async def leave_sweep(self, worker: str) -> None:
        """Let go of the sweep lease, so that another worker may take it at once."""

    async def promote_waiting(self) -> list[TurnId]:
        """Wherever turns wait and none runs, let the first of them run (as `settle` does)."""

    async def request_cancel(self, principal: Principal, turn_id: TurnId) -> Turn:
        """Ask for a stop. A waiting turn is settled as cancelled here and now, and its message refunded.

        A running turn is only marked: its holder learns of it from `record` and `renew`. Repeats change nothing.
        """

    async def add_notes(self, principal: Principal, turn_id: TurnId, notes: JsonObject) -> Turn:
        """Merge these notes into the metadata of the turn. Objects in it are merged in the same way, other values are
        replaced. Of several calls at once all are kept. Repeats change nothing."""

    async def watch(self, turn_ids: Sequence[TurnId], *, seconds: float) -> None:
        """Readers are attached to these turns: `watched_until` moves to that far from now (never backwards)."""

    async def unwatch(self, turn_ids: Sequence[TurnId], *, seconds: float) -> None:
        """The last reader has left these turns: `watched_until` moves back to that far from now (never forwards)."""

    async def cancel_unwatched(self) -> list[TurnId]:
        """Ask for a stop of every running foreground turn whose `watched_until` has passed; return their ids."""

    async def turn(self, principal: Principal, turn_id: TurnId) -> Turn: ...

    async def claimed_turn(self, turn_id: TurnId) -> Turn:
        """The turn, also when its conversation was deleted since. For the caller that claimed it and waits. NotFound
        once it is purged."""

    async def running_turn(self, turn_id: TurnId, attempt: int) -> Turn | None:
        """The turn, while it runs under this attempt, with the tokens counted so far: for its sandbox and holder."""

    async def count_usage(self, turn_id: TurnId, attempt: int, usage: Usage, *, call_id: CallId) -> bool:
        """Add these tokens to a turn that runs under this attempt; False if it does not any more.

        For model calls that are not the holder's own. It reads the sum with `running_turn` before it settles. A call
        is counted once, however often it is reported.
        """

    async def open_call(self, turn_id: TurnId, attempt: int, *, call_id: CallId) -> None:
        """Such a call has begun to answer. It is open until it is counted."""

    async def has_open_calls(self, turn_id: TurnId, attempt: int) -> bool: ...

    async def events(self, turn_id: TurnId, *, after: int = 0, limit: int = 1_000) -> list[Recorded]:
        """Events later than `after`, in order. Those of an appended or imported turn are made from its rows."""

    async def compact(self, *, settled_before: int, limit: int = 200) -> bool:
        """Drop what follows from the rows of turns that settled before that moment: events, and the display of an
        answer without steps. Readers get the same as before. Takes some turns, the oldest first; False if there are no
        more."""

    async def make_partitions(self, *, now: int, months: int = 1) -> None:
        """Prepare the database for turns of this month and the next two, if it divides its tables by time, with so many
        months of messages in one part. A turn that comes before that is stored all the same."""

    async def drop_partitions(self, *, ended_before: int, limit: int = 200) -> bool:
        """Drop what such a database has of months that ended before that moment: the events of settled turns, which it
        keeps elsewhere as far as they do not follow from rows, and what was left empty. Readers get the same as before.
        Takes some turns at a time; False if there are no more."""

    async def last_seqs(self, turn_ids: Sequence[TurnId]) -> dict[TurnId, int]:
        """The number of the last event of each of these turns, with one statement. Turns that do not exist are left
        out."""

    async def turn_rows(self, turn_id: TurnId) -> list[Message]:
        """All rows of one turn in order, for its worker."""

    async def window(
        self, conversation_id: ConversationId, *, turns: int = 20, row_limit: int = ROW_LIMIT, before: int | None = None
    ) -> Window:
        """The newest turns on the visible chain, the running one included; with `before`, those of smaller ordinals.

        The cost does not depend on the length of the conversation. These rows are for the model: they come without
        their display.
        """

    async def chain(
        self, conversation_id: ConversationId, *, order: Order = "asc", past: int | None = None, limit: int = 20
    ) -> list[Turn]:
        """Turns of the visible chain in this order, the running one included; with `past`, those beyond this ordinal.
        The cost does not depend on the length of the conversation."""

    async def trace(self, principal: Principal, turn_id: TurnId) -> TurnTrace:
        """Rows, events and logs of one turn. Forbidden for anyone but a service."""


class FeedbackStore(Protocol):
    """What users think of answers: one rating for each user and turn."""

    async def rate_turn(
        self, principal: Principal, turn_id: TurnId, rating: Rating, comment: str | None = None
    ) -> Feedback:
        """Rate the answer of a turn in the user's own conversation, or change the rating. Conflict if the turn has not
        ended, Forbidden for a service that acts for no user."""

    async def delete_feedback(self, principal: Principal, turn_id: TurnId) -> None:
        """Take one's own rating back. NotFound if there is none."""

    async def feedback_of(self, principal: Principal, conversation_id: ConversationId) -> list[Feedback]:
        """The user's own ratings in a conversation."""

    async def all_feedback(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        *,
        rating: Rating | None = None,
        agent_id: AgentId | None = None,
        since: int = 0,
        limit: int = 100,
        cursor: str | None = None,
    ) -> Page[RatedTurn]:
        """The ratings of a workspace, newest first, without those of deleted conversations."""
