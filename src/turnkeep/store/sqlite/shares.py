"""Share links on SQLite: made, listed, revoked, opened and read."""

import hmac

from turnkeep.ids import ConversationId, FileId, OrgId, ShareId, TurnId, UserId, WorkspaceId, check_id, new_share_id
from turnkeep.model.conversations import NewShare, OpenShare, Share
from turnkeep.model.messages import PublicMessage
from turnkeep.model.principals import Principal
from turnkeep.store.checks import check_limit
from turnkeep.store.commands import Page
from turnkeep.store.cursors import decode_cursor, encode_cursor, shared_turns_of
from turnkeep.store.rows import json_text, to_open_share, to_share
from turnkeep.store.rules.conversations import no_share, nothing_to_share, share_record, shared_page, turns_that_fit
from turnkeep.store.rules.directory import check_workspace
from turnkeep.store.sqlite.conversations import own_conversation
from turnkeep.store.sqlite.directory import check_user
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Row, Session


class SqliteShares(StoreThreads):
    """Links to conversations. Promises are those of `ports.ShareStore`."""

    async def share_conversation(self, principal: Principal, conversation_id: ConversationId, new: NewShare) -> Share:
        check_id(conversation_id, "conv")
        if new.turn_id is not None:
            check_id(new.turn_id, "turn")
        return await self._write(_share, principal, conversation_id, new)

    async def shares(
        self,
        org_id: OrgId,
        workspace_id: WorkspaceId,
        *,
        user_id: UserId | None = None,
        conversation_id: ConversationId | None = None,
    ) -> list[Share]:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id, "user": user_id, "conversation": conversation_id}
        return await self._read(
            lambda session: [to_share(row) for row in session.rows("shares", which | {"now": session.clock()})]
        )

    async def revoke_share(
        self, org_id: OrgId, workspace_id: WorkspaceId, share_id: ShareId, *, user_id: UserId | None = None
    ) -> None:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id, "user": user_id, "id": check_id(share_id, "share")}
        if not await self._write(lambda session: session.run("revoke_share", which)):
            raise no_share()

    async def open_share(self, secret_hash: bytes) -> OpenShare | None:
        row = await self._read(
            lambda session: session.row("share_by_hash", {"hash": secret_hash, "now": session.clock()})
        )
        if row is None or not hmac.compare_digest(row[-1], secret_hash):
            return None
        return to_open_share(row[:-1])

    async def shared_messages(
        self, opened: OpenShare, *, limit: int = 20, cursor: str | None = None, file_id: FileId | None = None
    ) -> Page[PublicMessage]:
        check_limit(limit)
        share, of = opened.share, shared_turns_of(opened.share.id)
        which = {
            "conversation": share.conversation_id,
            "turn": share.turn_id,
            "after": 0 if cursor is None else decode_cursor(cursor, of, tuple[int])[0],
            "file": file_id,
            "limit": limit + 1,
        }
        turns: list[tuple[TurnId, int]] = await self._read(lambda session: session.rows("shared_turns", which))
        rows = await self._see(opened.owner, _rows_of, [turn_id for turn_id, _ in turns[:limit]])
        fit = turns_that_fit(turns, rows, limit)
        shown = {turn_id for turn_id, _ in turns[:fit]}
        return Page(
            data=shared_page([row for row in rows if row[1] in shown], share.conversation_id),
            next_cursor=encode_cursor(of, turns[fit - 1][1]) if len(turns) > fit else None,
        )


def _share(session: Session, principal: Principal, conversation_id: ConversationId, new: NewShare) -> Share:
    check_user(session, principal)
    own_conversation(session, principal, conversation_id)
    session.run("delete_expired_shares", {"now": session.now})
    turn = session.row("turn_to_share", {"conversation": conversation_id, "turn": new.turn_id})
    if turn is None:
        raise nothing_to_share()
    record = share_record(new)
    times = {"now": session.now, "expires_at": session.now + record.pop("ms")}
    which = {"id": new_share_id(), "conversation": conversation_id, "turn": turn[0]}
    return to_share(session.rows("insert_share", which | record | times)[0])


def _rows_of(session: Session, turn_ids: list[TurnId]) -> list[Row]:
    return session.rows("my_rows_of_turns", (json_text(turn_ids),))
