"""Conversations: list, search, make, change, delete, restore; their messages, rows, export and import; share links."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from turnkeep_client.transport import Resource, given, part
from turnkeep_client.wire import (
    Conversation,
    ConversationFolder,
    Feedback,
    FeedbackItem,
    Imported,
    Message,
    MovedConversations,
    Page,
    Replay,
    Share,
    SharedConversation,
    TraceRow,
)
from turnkeep_client.wire.blocks import JsonObject
from turnkeep_client.wire.conversations import ConversationFields, Kind, Rating

Order = Literal["asc", "desc"]
Provider = Literal["anthropic", "openai_chat", "openai_responses", "sandbox"]
Document = bytes | str | Sequence[Mapping[str, Any]] | Mapping[str, Any]


class ConversationFilters(TypedDict, total=False):
    """Which conversations a list has. `user` is a user's id or the host's id, for service keys. `since` is the earliest
    time of the last change, in milliseconds. Runs are listed only with `kind="run"`. `deleted=True` lists what can be
    restored instead, the last deleted first, and takes only `user` beside it. `is_filed=False` lists those in no
    folder."""

    external_id: str | None
    user: str | None
    agent_id: str | None
    kind: Kind | None
    since: int | None
    deleted: bool | None
    is_pinned: bool | None
    folder: str | None
    is_filed: bool | None


class ConversationChanges(TypedDict, total=False):
    """What can be changed of a conversation; None takes the model, the agent, the folder, the
    instructions or the temperature away."""

    title: str
    model: str | None
    agent_id: str | None
    head_turn_id: str
    metadata: JsonObject
    folder: str | None
    is_pinned: bool
    is_unread: bool
    instructions: str | None
    temperature: float | None


class Conversations(Resource):
    """Threads."""

    def list(
        self, q: str | None = None, *, limit: int | None = None, **only: Unpack[ConversationFilters]
    ) -> AsyncGenerator[Conversation, None]:
        """Conversations, the last changed first; with `q` those that it finds, and of them those that have the given
        fields. Pages are fetched as they are read."""
        return self._pages("/v1/conversations", Conversation, limit=limit, q=q, **only)

    async def page(
        self,
        q: str | None = None,
        *,
        limit: int | None = None,
        cursor: str | None = None,
        **only: Unpack[ConversationFilters],
    ) -> Page[Conversation]:
        """One page of the same list, and the cursor of the next one."""
        return await self._page("/v1/conversations", Conversation, q=q, limit=limit, cursor=cursor, **only)

    async def create(
        self,
        *,
        title: str | None = None,
        agent_id: str | None = None,
        model: str | None = None,
        metadata: JsonObject | None = None,
        folder: str | None = None,
        **fields: Unpack[ConversationFields],
    ) -> Conversation:
        """Make an empty conversation, or get the one that has this `external_id`. A question without a conversation
        makes one too."""
        body = given(title=title, agent_id=agent_id, model=model, metadata=metadata, folder=folder, **fields)
        return await self._transport.call("POST", "/v1/conversations", Conversation, body=body)

    async def get(self, conversation_id: str) -> Conversation:
        """One conversation, with the turn that runs and those that wait."""
        return await self._transport.call("GET", _path(conversation_id), Conversation)

    async def rename(self, conversation_id: str, title: str) -> Conversation:
        """Give it another title."""
        return await self.update(conversation_id, title=title)

    async def update(self, /, conversation_id: str, **fields: Unpack[ConversationChanges]) -> Conversation:
        """Change the given fields; `head_turn_id` switches to another branch, None takes model or agent away."""
        return await self._transport.call("PATCH", _path(conversation_id), Conversation, body=fields)

    async def folders(self) -> Sequence[ConversationFolder]:
        """The folders that conversations are in, by name."""
        return [folder async for folder in self._pages("/v1/folders", ConversationFolder)]

    async def rename_folder(self, name: str, new_name: str | None) -> int:
        """Give a folder another name, or with None take all conversations out of it. Returns how many were moved."""
        body = {"name": name, "new_name": new_name}
        return (await self._transport.call("PATCH", "/v1/folders", MovedConversations, body=body)).conversations

    async def delete(self, conversation_id: str) -> None:
        """Delete it with its files; it can be restored for a while."""
        await self._transport.fetch("DELETE", _path(conversation_id))

    async def erase(self, conversation_id: str) -> None:
        """Erase it for good, with its files, at once. It cannot be restored."""
        await self._transport.fetch("POST", f"{_path(conversation_id)}/erase", is_safe=True)

    async def restore(self, conversation_id: str) -> Conversation:
        """Undo a delete."""
        return await self._transport.call("POST", f"{_path(conversation_id)}/restore", Conversation, is_safe=True)

    def messages(
        self, conversation_id: str, *, order: Order = "asc", limit: int | None = None
    ) -> AsyncGenerator[Message, None]:
        """The public transcript."""
        return self._pages(f"{_path(conversation_id)}/messages", Message, limit=limit, order=order)

    def trace(self, conversation_id: str, *, limit: int | None = None) -> AsyncGenerator[TraceRow, None]:
        """All stored rows, internal ones included (service keys only)."""
        return self._pages(f"{_path(conversation_id)}/trace", TraceRow, limit=limit)

    async def replay(self, conversation_id: str, *, provider: Provider | None = None) -> Replay:
        """What the next turn would send of the past (service keys only)."""
        return await self._transport.call(
            "GET", f"{_path(conversation_id)}/replay", Replay, query={"provider": provider}
        )

    async def export(self, conversation_id: str) -> bytes:
        """The whole conversation without loss, as JSON that `import_` takes (service keys only)."""
        return await self._transport.fetch("GET", f"{_path(conversation_id)}/export")

    async def import_(self, document: Document, *, title: str | None = None, form: str | None = None) -> Imported:
        """Make conversations of an export of Turnkeep or ChatGPT, or of a history from elsewhere (service keys only).

        `document` is the bytes or the text of the export, or the list of messages or the object itself. `form` names
        the shape of a foreign history (`anthropic`, `openai_chat`, `openai_responses`, `ai_sdk`, `rows`, `plain`) if it
        cannot be detected.
        """
        content = await asyncio.to_thread(_encoded, document)
        return await self._transport.call_raw(
            "POST", "/v1/import", Imported, query={"title": title, "form": form}, content=content
        )


class FeedbackFilters(TypedDict, total=False):
    """Which feedback is read. `since` is the earliest time, in milliseconds."""

    rating: Rating | None
    agent_id: str | None
    since: int | None


class FeedbackResource(Resource):
    """What users think of answers. `turns.rate` gives a rating."""

    def of(self, conversation_id: str) -> AsyncGenerator[Feedback, None]:
        """The caller's own ratings in a conversation."""
        return self._pages(f"{_path(conversation_id)}/feedback", Feedback)

    def list(self, *, limit: int | None = None, **only: Unpack[FeedbackFilters]) -> AsyncGenerator[FeedbackItem, None]:
        """The ratings of all users of the workspace, newest first (admins only)."""
        return self._pages("/v1/feedback", FeedbackItem, limit=limit, **only)

    async def export(self, *, format: Literal["csv", "jsonl"] = "jsonl", **only: Unpack[FeedbackFilters]) -> bytes:
        """The same as one file, for a spreadsheet or an evaluation (admins only)."""
        return await self._transport.fetch("GET", "/v1/feedback", query={"format": format, **only})


class ShareLinks(Resource):
    """Links that show a conversation, read-only, to everybody who has them."""

    async def create(
        self,
        conversation_id: str,
        *,
        turn_id: str | None = None,
        with_files: bool = False,
        ttl_seconds: int | None = None,
    ) -> Share:
        """Share the branch as it is now, up to `turn_id` (by default the last turn that has ended); `share.url` is
        shown only once."""
        body = given(turn_id=turn_id, with_files=with_files, ttl_seconds=ttl_seconds)
        return await self._transport.call("POST", f"{_path(conversation_id)}/shares", Share, body=body)

    def list(self, conversation_id: str | None = None) -> AsyncGenerator[Share, None]:
        """The links that have not ended: to conversations of the caller, or (admins) to all of the workspace."""
        return self._pages("/v1/shares", Share, conversation_id=conversation_id)

    async def revoke(self, share_id: str) -> None:
        """End a link at once."""
        await self._transport.fetch("DELETE", f"/v1/shares/{part(share_id)}")

    async def open(self, url: str, *, limit: int | None = None, cursor: str | None = None) -> SharedConversation:
        """What a link shows, oldest first; the first page, or the one of this cursor. No key is needed."""
        headers = {"turnkeep-share": _token(url)}
        query = {"limit": limit, "cursor": cursor}
        return await self._transport.call("GET", "/v1/shared", SharedConversation, query=query, headers=headers)

    async def read_file(self, url: str, file_id: str) -> bytes:
        """The content of a file that a link shows."""
        headers = {"turnkeep-share": _token(url), "accept": "*/*"}
        return await self._transport.fetch("GET", "/v1/shared/file", query={"file_id": file_id}, headers=headers)


def _token(url: str) -> str:
    """What follows `#` in a link, or the token itself."""
    return url.rpartition("#")[2]


def _encoded(document: Document) -> bytes:
    if isinstance(document, str):
        return document.encode()
    return document if isinstance(document, bytes) else msgspec.json.encode(document)


def _path(conversation_id: str) -> str:
    return f"/v1/conversations/{part(conversation_id)}"
