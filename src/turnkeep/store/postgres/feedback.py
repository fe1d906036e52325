"""Feedback on PostgreSQL: ratings of answers, which a user gives, changes and removes, and an admin reads."""

from turnkeep.errors import InvalidRequest
from turnkeep.ids import AgentId, ConversationId, OrgId, TurnId, WorkspaceId, check_id
from turnkeep.model.principals import Principal
from turnkeep.model.turns import Feedback, RatedTurn, Rating
from turnkeep.store.checks import check_limit
from turnkeep.store.commands import Page, page_of
from turnkeep.store.cursors import FEEDBACK, decode_cursor, encode_cursor
from turnkeep.store.postgres.directory import check_user
from turnkeep.store.postgres.io.database import Database, Statements
from turnkeep.store.rows import to_feedback, to_rated_turn
from turnkeep.store.rules.directory import check_workspace
from turnkeep.store.rules.turns import check_comment, no_feedback, no_turn, not_ended, rater_of

LATEST = 2**63 - 1


class PostgresFeedback:
    """Ratings of answers."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def rate_turn(
        self, principal: Principal, turn_id: TurnId, rating: Rating, comment: str | None = None
    ) -> Feedback:
        which = (principal.org_id, principal.workspace_id, rater_of(principal), check_id(turn_id, "turn"))
        said = check_comment(comment)

        async def work(statements: Statements) -> Feedback | None:
            await check_user(statements, principal)
            rows = await statements.fetch("rate_turn", *which, rating, said)
            return to_feedback(rows[0]) if rows else None

        if (rated := await self._database.transact(work)) is not None:
            return rated
        if await self._database.read_as(principal, "my_turn", turn_id):
            raise not_ended()
        raise no_turn()

    async def delete_feedback(self, principal: Principal, turn_id: TurnId) -> None:
        which = (principal.org_id, principal.workspace_id, rater_of(principal), check_id(turn_id, "turn"))
        if not await self._database.write("delete_feedback", *which):
            raise no_feedback()

    async def feedback_of(self, principal: Principal, conversation_id: ConversationId) -> list[Feedback]:
        if principal.user_id is None:
            return []
        which = (principal.org_id, principal.workspace_id, principal.user_id, check_id(conversation_id, "conv"))
        return [to_feedback(row) for row in await self._database.read("feedback_of_conversation", *which)]

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
        if not 0 <= at <= LATEST:
            raise InvalidRequest("This cursor is malformed. Use the next_cursor of the page before.")
        which = (org_id, workspace_id, at, turn, since, rating, agent_id, limit + 1)
        rows = await self._database.read("feedback_of_workspace", *which)
        return page_of(
            [to_rated_turn(row) for row in rows],
            limit=limit,
            cursor_of=lambda rated: encode_cursor(FEEDBACK, rated.feedback.created_at, rated.feedback.turn_id),
        )
