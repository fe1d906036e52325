"""The async client: verbs in groups, on one transport."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from turnkeep_client.account import Erasures, Keys, Models, NativeTools, Tokens, UsageResource, Users, Workspaces
from turnkeep_client.agents import Agents
from turnkeep_client.conversations import Conversations, FeedbackResource, ShareLinks
from turnkeep_client.discovery import ServerAddress, find_server
from turnkeep_client.files import FileResource
from turnkeep_client.knowledge import Pages, Tables
from turnkeep_client.people import Invites, Sessions
from turnkeep_client.retry import OnTrouble
from turnkeep_client.transport import (
    PATIENCE_SECONDS,
    SILENCE_SECONDS,
    TIMEOUT_SECONDS,
    ClientOptions,
    ConnectionPool,
    OptionChanges,
    Transport,
)
from turnkeep_client.turns import Turns
from turnkeep_client.webhooks import Webhooks
from turnkeep_client.wire import Me

if TYPE_CHECKING:
    import httpx


class AsyncTurnkeep:
    """A Turnkeep server, from Python.

        async with AsyncTurnkeep() as turnkeep:
            answer = await turnkeep.ask("Hello?")

    Without `base_url` and `key` it looks at `TURNKEEP_URL` and `TURNKEEP_KEY`, then for a server on this machine. With
    a service key, `user` makes it act for that user of yours. `patience_seconds` is how long it tries, without any
    progress, to reach a server that does not answer; `on_trouble` is called before every such retry. `transport` takes
    the place of the network: any transport of httpx.
    """

    def __init__(
        self,
        base_url: str | None = None,
        key: str | None = None,
        *,
        user: str | None = None,
        workspace_id: str | None = None,
        data_dir: str | Path | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        patience_seconds: float = PATIENCE_SECONDS,
        on_trouble: OnTrouble | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        options = ClientOptions(
            user=user,
            workspace_id=workspace_id,
            timeout_seconds=timeout_seconds,
            silence_seconds=silence_seconds,
            patience_seconds=patience_seconds,
            on_trouble=on_trouble,
        )
        pool = ConnectionPool(find_server(base_url, key, data_dir=data_dir), transport)
        self._use(Transport(pool, options))

    def _use(self, transport: Transport) -> None:
        self._transport = transport
        self.turns = Turns(transport)
        self.conversations = Conversations(transport)
        self.shares = ShareLinks(transport)
        self.feedback = FeedbackResource(transport)
        self.files = FileResource(transport)
        self.agents = Agents(transport)
        self.pages = Pages(transport)
        self.tables = Tables(transport)
        self.models = Models(transport)
        self.keys = Keys(transport)
        self.tokens = Tokens(transport)
        self.users = Users(transport)
        self.erasures = Erasures(transport)
        self.invites = Invites(transport)
        self.sessions = Sessions(transport)
        self.tools = NativeTools(transport)
        self.webhooks = Webhooks(transport)
        self.workspaces = Workspaces(transport)
        self.usage = UsageResource(transport)
        self.ask = self.turns.ask
        self.stream = self.turns.stream

    def __repr__(self) -> str:
        user = "" if self.options.user is None else f", user={self.options.user!r}"
        return f"{type(self).__name__}({self.place.url!r}{user})"

    @property
    def place(self) -> ServerAddress:
        """The server that is asked."""
        return self._transport.place

    @property
    def options(self) -> ClientOptions:
        """For whom the client acts, and how long it waits."""
        return self._transport.options

    def with_options(self, **changes: Unpack[OptionChanges]) -> Self:
        """A client with other options on the same connections. It need not be closed.

        For one call: `await turnkeep.with_options(timeout_seconds=2).conversations.get(…)`. A shorter
        `timeout_seconds` shortens `patience_seconds` too, unless both are given.
        """
        other = object.__new__(type(self))
        other._use(self._transport.with_options(**changes))
        return other

    def as_user(self, user: str, *, workspace_id: str | None = None) -> Self:
        """The same server for one user of yours (service keys only). It need not be closed."""
        return self.with_options(user=user, workspace_id=workspace_id or self.options.workspace_id)

    async def me(self) -> Me:
        """Who the server takes this client for: user, workspace, role and scopes, and the limits of files."""
        return await self._transport.call("GET", "/v1/me", Me)

    async def close(self) -> None:
        """Close the connections. Clients made by `as_user` and `with_options` leave them open."""
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
