"""Sessions of the page and invites, on PostgreSQL.

Ids are made before the write begins, so that one whose answer was lost can be repeated.
"""

import hmac

from turnkeep.ids import InviteId, OrgId, SessionId, UserId, WorkspaceId, check_id, new_invite_id, new_session_id
from turnkeep.model.sessions import Invite, NewSession, PageSession, SignedIn
from turnkeep.store.postgres.io.database import Database
from turnkeep.store.rows import to_invite, to_session, to_signed_in
from turnkeep.store.rules.directory import check_workspace, no_user
from turnkeep.store.rules.sessions import invite_record, no_invite, no_session, session_record


class PostgresSessions:
    """Who is signed in."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add_session(self, org_id: OrgId, user_id: UserId, session: NewSession) -> PageSession:
        which = (new_session_id(), check_id(org_id, "org"), check_id(user_id, "user"))
        record = session_record(session)
        await self._database.write("delete_expired_sessions")
        rows = await self._database.write("insert_session", *which, *record.values())
        if not rows:
            raise no_user()
        return to_session(rows[0])

    async def signed_in(self, secret_hash: bytes) -> SignedIn | None:
        rows = await self._database.read("session_by_hash", secret_hash)
        if not rows or not hmac.compare_digest(rows[0][-1], secret_hash):
            return None
        return to_signed_in(rows[0])

    async def use_session(self, session_id: SessionId) -> None:
        await self._database.write("use_session", check_id(session_id, "session"))

    async def sessions(self, org_id: OrgId, user_id: UserId) -> list[PageSession]:
        rows = await self._database.read("sessions_of_user", check_id(org_id, "org"), check_id(user_id, "user"))
        return [to_session(row) for row in rows]

    async def end_session(self, org_id: OrgId, user_id: UserId, session_id: SessionId) -> None:
        which = (check_id(org_id, "org"), check_id(user_id, "user"), check_id(session_id, "session"))
        if not await self._database.write("end_session", *which):
            raise no_session()

    async def end_sessions(self, org_id: OrgId, user_id: UserId, *, kept: SessionId | None = None) -> None:
        await self._database.write("end_sessions", check_id(org_id, "org"), check_id(user_id, "user"), kept)

    async def end_session_by_hash(self, secret_hash: bytes) -> None:
        await self._database.write("end_session_by_hash", secret_hash)

    async def add_invite(self, org_id: OrgId, user_id: UserId, secret_hash: bytes, *, seconds: float) -> Invite:
        which = (new_invite_id(), check_id(org_id, "org"), check_id(user_id, "user"))
        record = invite_record(secret_hash, seconds)
        await self._database.write("delete_expired_invites")
        rows = await self._database.write("insert_invite", *which, *record.values())
        if not rows:
            raise no_user()
        return to_invite(rows[0])

    async def invites(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[Invite]:
        check_workspace(org_id, workspace_id)
        return [to_invite(row) for row in await self._database.read("invites", org_id, workspace_id)]

    async def delete_invite(self, org_id: OrgId, workspace_id: WorkspaceId, invite_id: InviteId) -> None:
        check_workspace(org_id, workspace_id)
        if not await self._database.write("delete_invite", org_id, workspace_id, check_id(invite_id, "invite")):
            raise no_invite()

    async def spend_invite(self, secret_hash: bytes, session: NewSession) -> PageSession | None:
        record = session_record(session)
        rows = await self._database.write(
            "spend_invite", secret_hash, new_session_id(), record["hash"], record["browser"], record["ms"]
        )
        return to_session(rows[0]) if rows else None
