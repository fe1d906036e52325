"""Sessions of the page, and links that invite a person to it."""

from msgspec import Struct

from turnkeep.ids import InviteId, SessionId, UserId, WorkspaceId
from turnkeep.model.principals import Member, Workspace
from turnkeep_client.wire.account import SigninMethod

BROWSER_CHARS = 300

__all__ = ["BROWSER_CHARS", "Invite", "NewSession", "PageSession", "SignedIn", "SigninMethod"]


class PageSession(Struct, frozen=True, kw_only=True):
    """A browser that is signed in as one user until `expires_at`. `browser` is how the browser calls itself."""

    id: SessionId
    workspace_id: WorkspaceId
    user_id: UserId
    method: SigninMethod
    browser: str
    created_at: int
    last_used_at: int
    expires_at: int


class NewSession(Struct, frozen=True, kw_only=True):
    """What a sign-in stores. `secret_hash` is that of the cookie."""

    secret_hash: bytes
    method: SigninMethod
    browser: str
    seconds: float


class SignedIn(Struct, frozen=True, kw_only=True):
    """A session with its user and workspace, as they are now."""

    session: PageSession
    member: Member
    workspace: Workspace


class Invite(Struct, frozen=True, kw_only=True):
    """A link that signs one user in, once, until `expires_at`."""

    id: InviteId
    workspace_id: WorkspaceId
    user_id: UserId
    created_at: int
    expires_at: int
    used_at: int | None
