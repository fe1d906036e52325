"""All verbs together."""

from typing import Protocol

from turnkeep.store.commands import ConnectionUse
from turnkeep.store.ports.conversations import ConversationStore, ShareStore
from turnkeep.store.ports.directory import DirectoryStore
from turnkeep.store.ports.erasures import ErasureStore
from turnkeep.store.ports.files import FileStore
from turnkeep.store.ports.knowledge import KnowledgeStore
from turnkeep.store.ports.outbox import OutboxStore, WebhookStore
from turnkeep.store.ports.sessions import SessionStore
from turnkeep.store.ports.turns import FeedbackStore, TurnStore


class Store(
    TurnStore,
    FeedbackStore,
    ConversationStore,
    ShareStore,
    DirectoryStore,
    SessionStore,
    FileStore,
    KnowledgeStore,
    OutboxStore,
    WebhookStore,
    ErasureStore,
    Protocol,
):
    """One database, all its verbs."""

    async def check_ready(self) -> str | None:
        """Return if the database takes writes and this release works with its schema, with what an operator should know
        about that schema. Raises Unavailable or SchemaMismatch. Cheap, and never repeated for long."""

    def connection_use(self) -> ConnectionUse:
        """How the connections of this process are used. A database without connections has waited for none."""

    async def close(self) -> None: ...
