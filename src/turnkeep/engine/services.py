"""What the parts of the engine share, made once and handed to each of them as one frozen value.

Three values extend each other. `LoopServices` is what the loop of a turn needs wherever it runs: in a server, or in a
sandbox, where a journal stands in place of the store. `Services` adds what a server has. `runtime.Runtime` adds what
only the API needs.
"""

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct, field, structs

from turnkeep.clock import Clock, system_clock
from turnkeep.config import EngineSettings
from turnkeep.engine.assembly import FileReader
from turnkeep.engine.observer import Observer
from turnkeep.engine.outbox import AuditLog, OutboxSink
from turnkeep.engine.sandbox.runner_client import RunnerClient
from turnkeep.engine.webhooks import WebhookPost
from turnkeep.ids import ConversationId, FileId, WorkspaceId
from turnkeep.model.agents import AgentSpec
from turnkeep.model.prices import Prices
from turnkeep.model.principals import Principal
from turnkeep.providers.ports import Providers
from turnkeep.store.ports import Store
from turnkeep.streaming.ports import Hub
from turnkeep.tools.ports import Tools

PIECES_PER_SECOND = 7_000
"""About half of the time of one core."""
MANY_SPEAKERS = 230
"""So many turns with 30 tokens a second stay below that. With more of them, tokens that are only read take a part of
the time, so fewer pieces are shown."""
BURST_SECONDS = 0.05
"""Tokens of different turns come at the same moment by chance. As many pieces as this time pays for are shown without a
wait: about 350."""
LONGEST_SECONDS = 0.1
"""The longest wait. With ten pieces a second, a text still seems to flow."""


class PreviewRate:
    """The rate of previews: a process shows a limited number of pieces of text a second, for all its turns together.

    A piece costs a write to each reader, and much more in Python than its text. With hundreds of turns that speak at
    once, pieces would take all the time of the event loop. So a turn waits a moment after a piece when there are too
    many, and its next piece has all the text that came meanwhile. Readers get fewer and larger pieces, and no text is
    lost. `pause_seconds` is called after each piece.
    """

    def __init__(self) -> None:
        self.speakers = 0
        """How many models are being listened to. Who listens counts itself."""
        self._booked_until = 0.0
        """The moment at which all pieces so far have been paid for."""

    def pause_seconds(self, now: float) -> float:
        """How long the turn waits before it looks for more text; 0 or less for not at all. `now` is monotonic."""
        price = max(1.0, self.speakers / MANY_SPEAKERS) / PIECES_PER_SECOND
        booked = max(self._booked_until, now) + price
        self._booked_until = min(booked, now + BURST_SECONDS + LONGEST_SECONDS)
        return self._booked_until - now - BURST_SECONDS


class FileCleanup(Protocol):
    """Erases the bytes of files whose rows the store has erased."""

    async def delete(self, storage_keys: Sequence[str]) -> None:
        """Erase these objects."""

    async def erase(
        self,
        workspace_id: WorkspaceId,
        conversation_ids: Sequence[ConversationId],
        files: Sequence[tuple[FileId, str]],
    ) -> None:
        """Erase the bytes of these files, uploads that are not complete included, and everything in the bags of these
        conversations."""

    async def tidy(self) -> None:
        """Erase uploads that were not completed, files that no message came to name, and now and then whatever else was
        left over. It is called every ten minutes."""


class FileCopies(Protocol):
    """Copies files, so that they can be attached where they do not belong."""

    async def copy(self, principal: Principal, file_ids: Sequence[FileId]) -> dict[FileId, FileId]:
        """Copies of these files that belong to no conversation yet, by the ids of the files. All of them or none."""

    async def discard(self, file_ids: Sequence[FileId]) -> None:
        """Erase those of these copies that no message names."""


class LoopServices(Struct, frozen=True, kw_only=True):
    """What the loop of a turn needs, in a server as in a sandbox."""

    settings: EngineSettings
    observer: Observer = field(default_factory=Observer)
    """Gets reports of what happens to turns, here and in sandboxes."""
    clock: Clock = system_clock
    preview_rate: PreviewRate = field(default_factory=PreviewRate)
    """How often text is shown, for all turns of the process together."""
    prices: Prices = Prices()
    """What models cost. In a sandbox there are none: the server counts the tokens."""


class Services(LoopServices, frozen=True, kw_only=True):
    """What the engine of a server needs."""

    store: Store
    hub: Hub
    providers: Providers
    tools: Tools
    files: FileReader | None = None
    """Reads the attachments of a history; without it they are only named."""
    file_cleanup: FileCleanup | None = None
    file_copies: FileCopies | None = None
    """Without it, only files of the same conversation can be attached."""
    outbox_sink: OutboxSink = field(default_factory=AuditLog)
    """Takes the entries of the outbox to the outside."""
    webhooks: WebhookPost | None = None
    """Posts to the endpoints of the host; without it, deliveries wait."""
    sandboxes: RunnerClient | None = None
    """The runner of turns in sandboxes, if one is known."""

    def for_agent(self, agent: AgentSpec) -> "Services":
        """The same, with settings as tight as the agent's own limits."""
        return structs.replace(self, settings=self.settings.within(agent.limits))
