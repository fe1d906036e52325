"""People on the page: invites, and the browsers in which a user is signed in."""

from collections.abc import AsyncGenerator
from typing import Literal

from turnkeep_client.transport import Resource, given, part
from turnkeep_client.wire import Invite, PageSession


class Invites(Resource):
    """Links that sign a person in to the page, once (admins only)."""

    def list(self) -> AsyncGenerator[Invite, None]:
        """The invites that are neither used nor expired."""
        return self._pages("/v1/invites", Invite)

    async def create(
        self,
        user: str,
        *,
        name: str | None = None,
        role: Literal["member", "admin"] | None = None,
        ttl_seconds: int | None = None,
    ) -> Invite:
        """A new invite for the user of this host id, who is made if there is none; `invite.url` is shown only once."""
        body = given(user=user, name=name, role=role, ttl_seconds=ttl_seconds)
        return await self._transport.call("POST", "/v1/invites", Invite, body=body)

    async def delete(self, invite_id: str) -> None:
        """Take an invite back that was not used yet."""
        await self._transport.fetch("DELETE", f"/v1/invites/{part(invite_id)}")


class Sessions(Resource):
    """Browsers that are signed in to the page: those of the caller, or (admins only) of another user."""

    def list(self, user: str | None = None) -> AsyncGenerator[PageSession, None]:
        """The sessions, the newest first."""
        return self._pages(_path(user), PageSession)

    async def end(self, session_id: str, *, user: str | None = None) -> None:
        """Sign out there, at once."""
        await self._transport.fetch("DELETE", f"{_path(user)}/{part(session_id)}")

    async def end_all(self, user: str | None = None) -> None:
        """Sign out everywhere. Of the caller's own sessions the one of the request stays."""
        await self._transport.fetch("DELETE", _path(user))


def _path(user: str | None) -> str:
    return "/v1/me/sessions" if user is None else f"/v1/users/{part(user)}/sessions"
