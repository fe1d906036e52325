"""Sessions of the page and invites, on SQLite."""

import hmac
from typing import Any

from turnkeep.ids import InviteId, OrgId, SessionId, UserId, WorkspaceId, check_id, new_invite_id, new_session_id
from turnkeep.model.sessions import Invite, NewSession, PageSession, SignedIn
from turnkeep.store.rows import to_invite, to_session, to_signed_in
from turnkeep.store.rules.directory import check_workspace, no_user
from turnkeep.store.rules.sessions import invite_record, no_invite, no_session, session_record
from turnkeep.store.sqlite.io.executors import StoreThreads
from turnkeep.store.sqlite.io.session import Session


class SqliteSessions(StoreThreads):
    """Who is signed in. Promises are those of `ports.SessionStore`."""

    async def add_session(self, org_id: OrgId, user_id: UserId, session: NewSession) -> PageSession:
        record = {"org": check_id(org_id, "org"), "user": check_id(user_id, "user")} | session_record(session)
        return await self._write(_add_session, record)

    async def signed_in(self, secret_hash: bytes) -> SignedIn | None:
        return await self._read(_signed_in, secret_hash)

    async def use_session(self, session_id: SessionId) -> None:
        which = {"id": check_id(session_id, "session")}
        await self._write(lambda session: session.run("use_session", which | {"now": session.now}))

    async def sessions(self, org_id: OrgId, user_id: UserId) -> list[PageSession]:
        which = {"org": check_id(org_id, "org"), "user": check_id(user_id, "user")}

        def read(session: Session) -> list[PageSession]:
            return [to_session(row) for row in session.rows("sessions_of_user", which | {"now": session.clock()})]

        return await self._read(read)

    async def end_session(self, org_id: OrgId, user_id: UserId, session_id: SessionId) -> None:
        which = {"org": check_id(org_id, "org"), "user": check_id(user_id, "user")}
        await self._write(_end_session, which | {"id": check_id(session_id, "session")})

    async def end_sessions(self, org_id: OrgId, user_id: UserId, *, kept: SessionId | None = None) -> None:
        which = {"org": check_id(org_id, "org"), "user": check_id(user_id, "user"), "kept": kept}
        await self._write(lambda session: session.run("end_sessions", which))

    async def end_session_by_hash(self, secret_hash: bytes) -> None:
        await self._write(lambda session: session.run("end_session_by_hash", {"hash": secret_hash}))

    async def add_invite(self, org_id: OrgId, user_id: UserId, secret_hash: bytes, *, seconds: float) -> Invite:
        record = {"org": check_id(org_id, "org"), "user": check_id(user_id, "user")}
        return await self._write(_add_invite, record | invite_record(secret_hash, seconds))

    async def invites(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[Invite]:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id}

        def read(session: Session) -> list[Invite]:
            return [to_invite(row) for row in session.rows("invites", which | {"now": session.clock()})]

        return await self._read(read)

    async def delete_invite(self, org_id: OrgId, workspace_id: WorkspaceId, invite_id: InviteId) -> None:
        check_workspace(org_id, workspace_id)
        which = {"org": org_id, "workspace": workspace_id, "id": check_id(invite_id, "invite")}
        await self._write(_delete_invite, which)

    async def spend_invite(self, secret_hash: bytes, session: NewSession) -> PageSession | None:
        return await self._write(_spend_invite, secret_hash, session_record(session))


def _add_session(session: Session, record: dict[str, Any]) -> PageSession:
    session.run("delete_expired_sessions", {"now": session.now})
    ends = {"now": session.now, "expires_at": session.now + record["ms"]}
    row = session.row("insert_session", record | {"id": new_session_id()} | ends)
    if row is None:
        raise no_user()
    return to_session(row)


def _signed_in(session: Session, secret_hash: bytes) -> SignedIn | None:
    row = session.row("session_by_hash", {"hash": secret_hash, "now": session.clock()})
    if row is None or not hmac.compare_digest(row[-1], secret_hash):
        return None
    return to_signed_in(row)


def _end_session(session: Session, which: dict[str, str]) -> None:
    if not session.run("end_session", which):
        raise no_session()


def _add_invite(session: Session, record: dict[str, Any]) -> Invite:
    session.run("delete_expired_invites", {"now": session.now})
    ends = {"now": session.now, "expires_at": session.now + record["ms"]}
    row = session.row("insert_invite", record | {"id": new_invite_id()} | ends)
    if row is None:
        raise no_user()
    return to_invite(row)


def _delete_invite(session: Session, which: dict[str, str]) -> None:
    if not session.run("delete_invite", which):
        raise no_invite()


def _spend_invite(session: Session, secret_hash: bytes, record: dict[str, Any]) -> PageSession | None:
    row = session.row("spend_invite", {"hash": secret_hash, "now": session.now})
    return None if row is None else _add_session(session, record | {"org": row[0], "user": row[1]})
