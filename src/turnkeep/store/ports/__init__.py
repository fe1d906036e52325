"""The verbs of the store, under one rule for turns: only the holder of the current attempt may write.

Every verb is atomic: it happens whole or not at all. Each may raise `Unavailable` when the database is away
(nothing was written, or what was written is recognised when the verb is repeated) and `StorageFull`. Values that
are too large, malformed or of another tenant are refused before anything is written: `InvalidRequest`, `TooLarge`,
`NotFound` (an id of another tenant or user does not exist).

Reads for a principal go through the client path, which can see only visible rows of that principal's tenant and
user whatever the query says. Verbs without a principal are the engine's own.
"""

from turnkeep.store.ports.conversations import ConversationStore, ShareStore
from turnkeep.store.ports.directory import DirectoryStore
from turnkeep.store.ports.erasures import ErasureStore
from turnkeep.store.ports.files import FileStore
from turnkeep.store.ports.knowledge import KnowledgeStore
from turnkeep.store.ports.outbox import DeliveryStore, OutboxStore, WebhookStore
from turnkeep.store.ports.sessions import SessionStore
from turnkeep.store.ports.store import Store
from turnkeep.store.ports.turns import FeedbackStore, TurnStore

__all__ = [
    "ConversationStore",
    "DeliveryStore",
    "DirectoryStore",
    "ErasureStore",
    "FeedbackStore",
    "FileStore",
    "KnowledgeStore",
    "OutboxStore",
    "SessionStore",
    "ShareStore",
    "Store",
    "TurnStore",
    "WebhookStore",
]
