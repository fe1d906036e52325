"""Share links on PostgreSQL: made, listed, revoked, opened and read."""

import hmac

from turnkeep.errors import InvalidRequest
from turnkeep.ids import ConversationId, FileId, OrgId, ShareId, TurnId, UserId, WorkspaceId, check_id, new_share_id
from turnkeep.model.conversations import NewShare, OpenShare, Share
from turnkeep.model.messages import PublicMessage
from turnkeep.model.principals import Principal
from turnkeep.store.checks import check_limit
from turnkeep.store.commands import Page
from turnkeep.store.cursors import decode_cursor, encode_cursor, shared_turns_of
from turnkeep.store.postgres.directory import check_user
from turnkeep.store.postgres.io.database import Database, Statements, owner_of
from turnkeep.store.rows import to_open_share, to_share
from turnkeep.store.rules.conversations import (
    no_conversation,
    no_share,
    nothing_to_share,
    share_record,
    shared_page,
    turns_that_fit,
)
from turnkeep.store.rules.directory import check_workspace


class PostgresShares:
    """Links to conversations."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def share_conversation(self, principal: Principal, conversation_id: ConversationId, new: NewShare) -> Share:
        check_id(conversation_id, "conv")
        if new.turn_id is not None:
            check_id(new.turn_id, "turn")
        share_id, record = new_share_id(), share_record(new)

        async def work(statements: Statements) -> Share:
            await check_user(statements, principal)
            if not await statements.fetch("conversation_for_write", *owner_of(principal), conversation_id):
                raise no_conversation()
            turns = await statements.fetch("turn_to_share", conversation_id, new.turn_id)
            if not turns:
                raise nothing_to_share()
            [row] = await statements.fetch("insert_share", share_id, conversation_id, turns[0][0], *record.values())
            return to_share(row)

        await self._database.write("delete_expired_shares")
        return await self._database.transact(work)

    async def shares(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        *,
        user_id: UserId | None = None,
        conversation_id: ConversationId | None = None,
    ) -> list[Share]:
        check_workspace(org_id, workspace_id)
        rows = await self._database.read("shares", org_id, workspace_id, user_id, conversation_id)
        return [to_share(row) for row in rows]

    async def revoke_share(
        self, org_id: OrgId, workspace_id: WorkspaceId, share_id: ShareId, *, user_id: UserId | None = None
    ) -> None:
        check_workspace(org_id, workspace_id)
        if not await self._database.write("revoke_share", org_id, workspace_id, user_id, check_id(share_id, "share")):
            raise no_share()

    async def open_share(self, secret_hash: bytes) -> OpenShare | None:
        rows = await self._database.read("share_by_hash", secret_hash)
        if not rows or not hmac.compare_digest(rows[0][-1], secret_hash):
            return None
        return to_open_share(list(rows[0])[:-1])

    async def shared_messages(
        self, opened: OpenShare, *, limit: int = 20, cursor: str | None = None, file_id: FileId | None = None
    ) -> Page[PublicMessage]:
        check_limit(limit)
        share, of = opened.share, shared_turns_of(opened.share.id)
        after = 0 if cursor is None else decode_cursor(cursor, of, tuple[int])[0]
        if not 0 <= after < 2**63:
            raise InvalidRequest("This cursor is malformed. Use the next_cursor of the page before.")
        found = await self._database.read(
            "shared_turns", share.conversation_id, share.turn_id, after, file_id, limit + 1
        )
        turns: list[tuple[TurnId, int]] = [(turn_id, ordinal) for turn_id, ordinal in found]
        ids = [turn_id for turn_id, _ in turns[:limit]]
        rows = await self._database.read_as(opened.owner, "my_rows_of_turns", ids) if ids else []
        fit = turns_that_fit(turns, rows, limit)
        shown = {turn_id for turn_id, _ in turns[:fit]}
        return Page(
            data=shared_page([row for row in rows if row[1] in shown], share.conversation_id),
            next_cursor=encode_cursor(of, turns[fit - 1][1]) if len(turns) > fit else None,
        )
