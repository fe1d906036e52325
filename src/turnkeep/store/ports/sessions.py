"""The verbs of sign-in: sessions of the page, and links that invite a person to it."""

from typing import Protocol

from turnkeep.ids import InviteId, OrgId, SessionId, UserId, WorkspaceId
from turnkeep.model.sessions import Invite, NewSession, PageSession, SignedIn


class SessionStore(Protocol):
    """Who is signed in, with which browser. Cookies and links are known by their hash alone."""

    async def add_session(self, org_id: OrgId, user_id: UserId, session: NewSession) -> PageSession:
        """Sign this user in. Sessions of anybody that have expired are deleted. NotFound if there is no such user."""

    async def signed_in(self, secret_hash: bytes) -> SignedIn | None:
        """The session of this cookie, with its user and workspace, by one look-up; None if it has ended."""

    async def use_session(self, session_id: SessionId) -> None:
        """Note that the session is used now."""

    async def sessions(self, org_id: OrgId, user_id: UserId) -> list[PageSession]:
        """The sessions of this user that have not ended, newest first."""

    async def end_session(self, org_id: OrgId, user_id: UserId, session_id: SessionId) -> None:
        """End one session, at once and on every worker. NotFound if the user has no such session."""

    async def end_sessions(self, org_id: OrgId, user_id: UserId, *, kept: SessionId | None = None) -> None:
        """End all sessions of this user but `kept`."""

    async def end_session_by_hash(self, secret_hash: bytes) -> None:
        """End the session of this cookie, if there is one."""

    async def add_invite(self, org_id: OrgId, user_id: UserId, secret_hash: bytes, *, seconds: float) -> Invite:
        """A link that signs this user in once. Links that have expired are deleted. NotFound if there is no such
        user."""

    async def invites(self, org_id: OrgId, workspace_id: WorkspaceId) -> list[Invite]:
        """The links of the workspace that are neither used nor expired, newest first."""

    async def delete_invite(self, org_id: OrgId, workspace_id: WorkspaceId, invite_id: InviteId) -> None:
        """The link is invalid from now on. NotFound for one that is used, deleted or of another workspace."""

    async def spend_invite(self, secret_hash: bytes, session: NewSession) -> PageSession | None:
        """Sign the invited user in, once: of many callers one gets a session. None for a link that is used, deleted or
        expired, and while the user is disabled (that does not spend it)."""
