"""Feedback on SQLite: ratings of answers, which a user gives, changes and removes, and an admin reads."""

from turnkeep.ids import AgentId, ConversationId, OrgId, TurnId, WorkspaceId, check_id
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Feedback, RatedTurn, Rating
from turnkeep.store.checks import check_limit
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import FEEDBACK, decode_cursor, encode_cursor
from turnkeep.store.rows import to_feedback, to_rated_turn
from turnkeep.store.rules.directory import check_workspace
from turnkeep.store.rules.turns import check_comment, no_feedback, no_turn, not_ended, rater_of
from turnkeep.store.sqlite.directory import check_user
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session, in_workspace

LATEST = 2**62


class SqliteFeedback(StoreThreads):
    """Ratings of answers. Promises are those of `ports.FeedbackStore`."""

    async def rate_turn(
        self, principal: Principal, turn_id: TurnId, rating: Rating, comment: str | None = None
    ) -> Feedback:
        which = in_workspace(principal) | {"user": rater_of(principal), "turn": check_id(turn_id, "turn")}
        values = which | {"rating": rating, "comment": check_comment(comment)}

        def rate(session: Session) -> Feedback | None:
            check_user(session, principal)
            rows = session.rows("rate_turn", values | {"now": session.now})
            return to_feedback(rows[0]) if rows else None

        if (rated := await self._write(rate)) is not None:
            return rated
        if await self._see(principal, _has_turn, turn_id):
            raise not_ended()
        raise no_turn()

    async def delete_feedback(self, principal: Principal, turn_id: TurnId) -> None:
        which = in_workspace(principal) | {"user": rater_of(principal), "turn": check_id(turn_id, "turn")}
        if not await self._write(lambda session: session.run("delete_feedback", which)):
            raise no_feedback()

    async def feedback_of(self, principal: Principal, conversation_id: ConversationId) -> list[Feedback]:
        if principal.user_id is None:
            return []
        check_id(conversation_id, "conv")
        which = in_workspace(principal) | {"user": principal.user_id, "conversation": conversation_id}
        rows = await self._read(lambda session: session.rows("feedback_of_conversation", which))
        return [to_feedback(row) for row in rows]

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
        check_workspace(org_id, workspace_id)
        check_limit(limit)
        at, turn = (LATEST, "") if cursor is None else decode_cursor(cursor, FEEDBACK, tuple[int, str])
        which = {"org": org_id, "workspace": workspace_id, "at": at, "turn": turn, "since": since}
        narrowed = which | {"rating": rating, "agent": agent_id, "limit": limit + 1}
        rows = await self._read(lambda session: session.rows("feedback_of_workspace", narrowed))
        return page_of([to_rated_turn(row) for row in rows], limit=limit, cursor_of=_cursor)


def _has_turn(session: Session, turn_id: TurnId) -> bool:
    return session.row("my_turn", {"turn": turn_id}) is not None


def _cursor(rated: RatedTurn) -> str:
    return encode_cursor(FEEDBACK, rated.feedback.created_at, rated.feedback.turn_id)
