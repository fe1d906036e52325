"""The async client: verbs in groups, on one transport."""

from pathlib import Path
from types import TracebackType
from typing import Self

from turnkeep_client.account import Erasures, Keys, Models, NativeTools, Tokens, UsageResource, Users, Workspaces
from turnkeep_client.agents import Agents
from turnkeep_client.conversations import Conversations
from turnkeep_client.discovery import ServerAddress, find_server
from turnkeep_client.files import FileResource
from turnkeep_client.knowledge import Pages, Tables
from turnkeep_client.people import Invites, Sessions
from turnkeep_client.retry import OnTrouble
from turnkeep_client.transport import PATIENCE_SECONDS, SILENCE_SECONDS, TIMEOUT_SECONDS, Transport
from turnkeep_client.turns import Turns


class AsyncTurnkeep:
    """A Turnkeep server, from Python.

        async with AsyncTurnkeep() as turnkeep:
            answer = await turnkeep.ask("Hello?")

    Without `base_url` and `key` it looks at `TURNKEEP_URL` and `TURNKEEP_KEY`, then for a server on this machine. With
    a service key, `user` makes it act for that user of yours. `patience_seconds` is how long it tries, without any
    progress, to reach a server that does not answer; `on_trouble` is called before every such retry.
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
    ) -> None:
        self._transport = Transport(
            find_server(base_url, key, data_dir=data_dir),
            user=user,
            workspace_id=workspace_id,
            timeout_seconds=timeout_seconds,
            silence_seconds=silence_seconds,
            patience_seconds=patience_seconds,
            on_trouble=on_trouble,
        )
        self.turns = Turns(self._transport)
        self.conversations = Conversations(self._transport)
        self.files = FileResource(self._transport)
        self.agents = Agents(self._transport)
        self.pages = Pages(self._transport)
        self.tables = Tables(self._transport)
        self.models = Models(self._transport)
        self.keys = Keys(self._transport)
        self.tokens = Tokens(self._transport)
        self.users = Users(self._transport)
        self.erasures = Erasures(self._transport)
        self.invites = Invites(self._transport)
        self.sessions = Sessions(self._transport)
        self.tools = NativeTools(self._transport)
        self.workspaces = Workspaces(self._transport)
        self.usage = UsageResource(self._transport)
        self.ask = self.turns.ask
        self.stream = self.turns.stream

    @property
    def place(self) -> ServerAddress:
        """The server that is asked."""
        return self._transport.place

    async def close(self) -> None:
        await self._transport.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
