"""`library` is a store with tools over it, and files that tests write; on SQLite and on PostgreSQL."""

import hashlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.store.factories import Tenant, a_conversation
from turnkeep.ids import ConversationId, new_call_id, new_file_id, new_turn_id
from turnkeep.knowledge.file_texts import FileTexts
from turnkeep.knowledge.tools import knowledge_tools
from turnkeep.model.files import File, NewFile
from turnkeep.model.principals import Principal
from turnkeep.store.ports import Store
from turnkeep.tools.ports import CallContext, Outcome
from turnkeep_client.wire.blocks import JsonObject


class FakeBag:
    """The bytes of files, in memory."""

    def __init__(self) -> None:
        self.bytes: dict[str, bytes] = {}
        self.reads = 0

    async def content(self, file: File, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        self.reads += 1
        yield self.bytes[file.storage_key][start:end]


class Library:
    """Everything that a test of the tools needs."""

    def __init__(
        self, store: Store, tenant: Tenant, conversation_id: ConversationId, bag: FakeBag, texts: FileTexts
    ) -> None:
        self.store = store
        self.texts = texts
        self.tenant = tenant
        self.conversation_id = conversation_id
        self.bag = bag
        self.tools = {tool.spec.name: tool for tool in knowledge_tools(store, texts)}

    async def call(self, name: str, args: JsonObject, *, by: Principal | None = None, **fields: Any) -> Outcome:
        values: dict[str, Any] = {
            "call_id": new_call_id(),
            "turn_id": new_turn_id(),
            "conversation_id": self.conversation_id,
            "principal": by or self.tenant.ann,
        }
        return await self.tools[name].call(args, CallContext(**values | fields))

    async def add_file(
        self,
        name: str,
        content: bytes,
        mime_type: str = "text/plain",
        *,
        saved: bool = False,
        by: Principal | None = None,
        conversation_id: ConversationId | None = None,
    ) -> File:
        file_id = new_file_id()
        new = NewFile(
            id=file_id,
            conversation_id=None if saved else conversation_id or self.conversation_id,
            name=name,
            mime_type=mime_type,
            size=len(content),
            storage_key=f"bag/{file_id}",
            sha256=hashlib.sha256(content).hexdigest(),
            is_saved=saved,
        )
        self.bag.bytes[new.storage_key] = content
        [file] = await self.store.add_files(by or self.tenant.ann, [new])
        return file


@pytest.fixture
async def library(store: Store, tenant: Tenant) -> AsyncIterator[Library]:
    conversation = await a_conversation(store, tenant.ann)
    bag = FakeBag()
    texts = FileTexts(store, bag)
    yield Library(store, tenant, conversation.id, bag, texts)
    await texts.close()


on_sqlite = pytest.mark.parametrize("opening", ["sqlite"], indirect=True)
"""For tests that do not depend on the database."""
