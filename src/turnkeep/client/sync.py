"""The sync face: the same verbs, for code without a loop. A thread of its own runs the async client.

Each verb is the async one, wrapped: the same name, the same arguments, the same answers. Async iterators become
iterators. Ctrl-C reaches the caller at once and loses nothing: an event that was under way comes with the next one.
"""

from collections.abc import AsyncGenerator, Callable, Coroutine
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from turnkeep.client.account import Agents, Keys, Models, Tokens, UsageVerbs, Workspaces
from turnkeep.client.client import AsyncTurnkeep
from turnkeep.client.conversations import Conversations
from turnkeep.client.files import Files
from turnkeep.client.finding import Place
from turnkeep.client.knowledge import Pages, Tables
from turnkeep.client.loop_thread import Items, LoopThread, items_of
from turnkeep.client.patience import OnTrouble
from turnkeep.client.stream import TurnStream
from turnkeep.client.sync_streams import Stream, SyncRun
from turnkeep.client.transport import PATIENCE_SECONDS, SILENCE_SECONDS, TIMEOUT_SECONDS
from turnkeep.client.turns import Turns

__all__ = ["Face", "Items", "LoopThread", "Stream", "SyncRun", "Turnkeep"]

Group = TypeVar("Group")
Given = ParamSpec("Given")
Found = TypeVar("Found")


class Face(Generic[Group]):
    """The sync side of a group of verbs."""

    def __init__(self, loop: LoopThread, group: Group) -> None:
        self._loop = loop
        self._group = group


def _blocking(
    verb: Callable[Concatenate[Group, Given], Coroutine[Any, Any, Found]],
) -> Callable[Concatenate[Face[Group], Given], Found]:
    @wraps(verb)
    def call(face: Face[Group], /, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        return face._loop.run(verb(face._group, *args, **kwargs))

    return call


def _iterating(
    verb: Callable[Concatenate[Group, Given], AsyncGenerator[Found, None]],
) -> Callable[Concatenate[Face[Group], Given], Items[Found]]:
    @wraps(verb)
    def call(face: Face[Group], /, *args: Given.args, **kwargs: Given.kwargs) -> Items[Found]:
        return items_of(face._loop, verb(face._group, *args, **kwargs))

    return call


def _streaming(
    verb: Callable[Concatenate[Group, Given], TurnStream],
) -> Callable[Concatenate[Face[Group], Given], Stream]:
    @wraps(verb)
    def call(face: Face[Group], /, *args: Given.args, **kwargs: Given.kwargs) -> Stream:
        return Stream(face._loop, verb(face._group, *args, **kwargs))

    return call


class SyncTurns(Face[Turns]):
    stream = _streaming(Turns.stream)
    ask = _blocking(Turns.ask)
    start = _blocking(Turns.start)
    follow = _streaming(Turns.follow)
    wait = _blocking(Turns.wait)
    get = _blocking(Turns.get)
    cancel = _blocking(Turns.cancel)
    trace = _blocking(Turns.trace)
    regenerate = _streaming(Turns.regenerate)
    edit = _streaming(Turns.edit)


class SyncConversations(Face[Conversations]):
    list = _iterating(Conversations.list)
    page = _blocking(Conversations.page)
    create = _blocking(Conversations.create)
    get = _blocking(Conversations.get)
    rename = _blocking(Conversations.rename)
    update = _blocking(Conversations.update)
    delete = _blocking(Conversations.delete)
    restore = _blocking(Conversations.restore)
    messages = _iterating(Conversations.messages)
    trace = _iterating(Conversations.trace)
    replay = _blocking(Conversations.replay)
    export = _blocking(Conversations.export)
    import_ = _blocking(Conversations.import_)


class SyncFiles(Face[Files]):
    upload = _blocking(Files.upload)
    upload_here = _blocking(Files.upload_here)
    list = _iterating(Files.list)
    get = _blocking(Files.get)
    delete = _blocking(Files.delete)
    save = _blocking(Files.save)
    read = _blocking(Files.read)
    chunks = _iterating(Files.chunks)
    download = _blocking(Files.download)


class SyncAgents(Face[Agents]):
    list = _iterating(Agents.list)
    get = _blocking(Agents.get)
    create = _blocking(Agents.create)
    update = _blocking(Agents.update)
    replace = _blocking(Agents.replace)
    delete = _blocking(Agents.delete)
    add_skill = _blocking(Agents.add_skill)
    remove_skill = _blocking(Agents.remove_skill)

    def run(self, agent_id: str, prompt: str, *, attachment_ids: "tuple[str, ...] | None" = None) -> SyncRun:
        """Run an agent once, without a conversation."""
        return SyncRun(self._loop, self._group.run(agent_id, prompt, attachment_ids=attachment_ids))


class SyncPages(Face[Pages]):
    list = _iterating(Pages.list)
    get = _blocking(Pages.get)
    create = _blocking(Pages.create)
    update = _blocking(Pages.update)
    delete = _blocking(Pages.delete)


class SyncTables(Face[Tables]):
    list = _iterating(Tables.list)
    get = _blocking(Tables.get)
    create = _blocking(Tables.create)
    update = _blocking(Tables.update)
    delete = _blocking(Tables.delete)
    rows = _iterating(Tables.rows)
    add_rows = _blocking(Tables.add_rows)
    get_row = _blocking(Tables.get_row)
    update_row = _blocking(Tables.update_row)
    delete_row = _blocking(Tables.delete_row)
    import_csv = _iterating(Tables.import_csv)
    export_csv = _iterating(Tables.export_csv)


class SyncModels(Face[Models]):
    list = _iterating(Models.list)


class SyncKeys(Face[Keys]):
    list = _iterating(Keys.list)
    create = _blocking(Keys.create)
    revoke = _blocking(Keys.revoke)


class SyncTokens(Face[Tokens]):
    create = _blocking(Tokens.create)


class SyncWorkspaces(Face[Workspaces]):
    list = _iterating(Workspaces.list)
    get = _blocking(Workspaces.get)
    create = _blocking(Workspaces.create)
    update = _blocking(Workspaces.update)
    delete = _blocking(Workspaces.delete)


class SyncUsage(Face[UsageVerbs]):
    get = _blocking(UsageVerbs.get)


class Turnkeep:
    """A Turnkeep server, from Python code without a loop. Takes what `AsyncTurnkeep` takes.

    with Turnkeep() as turnkeep:
        print(turnkeep.ask("Hello?").text)
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
        inner = AsyncTurnkeep(
            base_url,
            key,
            user=user,
            workspace_id=workspace_id,
            data_dir=data_dir,
            timeout_seconds=timeout_seconds,
            silence_seconds=silence_seconds,
            patience_seconds=patience_seconds,
            on_trouble=on_trouble,
        )
        self._inner = inner
        self._loop = LoopThread()
        self.turns = SyncTurns(self._loop, inner.turns)
        self.conversations = SyncConversations(self._loop, inner.conversations)
        self.files = SyncFiles(self._loop, inner.files)
        self.agents = SyncAgents(self._loop, inner.agents)
        self.pages = SyncPages(self._loop, inner.pages)
        self.tables = SyncTables(self._loop, inner.tables)
        self.models = SyncModels(self._loop, inner.models)
        self.keys = SyncKeys(self._loop, inner.keys)
        self.tokens = SyncTokens(self._loop, inner.tokens)
        self.workspaces = SyncWorkspaces(self._loop, inner.workspaces)
        self.usage = SyncUsage(self._loop, inner.usage)
        self.ask = self.turns.ask
        self.stream = self.turns.stream

    @property
    def place(self) -> Place:
        """The server that is asked."""
        return self._inner.place

    def close(self) -> None:
        self._loop.run(self._inner.close())
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
