"""The sync client: the same verbs, for code without a loop. A thread of its own runs the async client.

Each verb is the async one, wrapped: the same name, the same arguments, the same answers. Async iterators become
iterators. Ctrl-C reaches the caller at once and loses nothing: an event that was under way comes with the next one.
"""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from functools import wraps
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from turnkeep_client.account import Erasures, Keys, Models, NativeTools, Tokens, UsageResource, Users, Workspaces
from turnkeep_client.agents import Agents, RunLine, RunStream
from turnkeep_client.client import AsyncTurnkeep
from turnkeep_client.conversations import Conversations
from turnkeep_client.discovery import ServerAddress
from turnkeep_client.files import FileResource
from turnkeep_client.knowledge import Pages, Tables
from turnkeep_client.people import Invites, Sessions
from turnkeep_client.retry import OnTrouble
from turnkeep_client.stream import Answer, Event, TurnStream, TurnView
from turnkeep_client.transport import PATIENCE_SECONDS, SILENCE_SECONDS, TIMEOUT_SECONDS
from turnkeep_client.turns import Turns
from turnkeep_client.wire import Turn
from turnkeep_client.wire.blocks import Part

__all__ = ["Items", "LoopThread", "Stream", "SyncResource", "SyncRun", "Turnkeep"]

Group = TypeVar("Group")
Given = ParamSpec("Given")
Found = TypeVar("Found")


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="turnkeep client", daemon=True)
        self._thread.start()

    def submit(self, work: Coroutine[Any, Any, Found]) -> "Future[Found]":
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def run(self, work: Coroutine[Any, Any, Found]) -> Found:
        """The outcome of the work, which is given up when the caller is interrupted."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        if not self._loop.is_closed():
            self.run(self._loop.shutdown_asyncgens())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()


class Items(Generic[Found]):
    """An iterator over an async one. An interrupted step is not lost: the next call returns it."""

    def __init__(
        self, loop: LoopThread, source: AsyncIterator[Found], close: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._loop = loop
        self._source = source
        self._close = close
        self._pending: Future[Found] | None = None

    def __iter__(self) -> Iterator[Found]:
        return self

    def __next__(self) -> Found:
        if self._pending is None:
            self._pending = self._loop.submit(_next(self._source))
        try:
            found = self._pending.result()
        except KeyboardInterrupt:
            raise
        except StopAsyncIteration:
            raise StopIteration from None
        except BaseException:
            self._pending = None
            raise
        self._pending = None
        return found

    def close(self) -> None:
        if self._pending is not None:
            self._pending.cancel()
            with contextlib.suppress(BaseException):
                self._pending.result()
        self._loop.run(self._close())


async def _next(source: AsyncIterator[Found]) -> Found:
    return await anext(source)


def items_of(loop: LoopThread, source: AsyncGenerator[Found, None]) -> Items[Found]:
    return Items(loop, source, source.aclose)


class Stream:
    """A turn as its reader follows it; see `TurnStream`. Iterate for events, or call `result()`."""

    def __init__(self, loop: LoopThread, stream: TurnStream) -> None:
        self._loop = loop
        self._stream = stream
        self._items: Items[Event] | None = None

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        if self._items is None:
            self._items = Items(self._loop, self._stream, self._stream.close)
        return next(self._items)

    def words(self) -> Iterator[str]:
        """The text of the answer, as it is streamed."""
        return items_of(self._loop, self._stream.words())

    def result(self) -> Answer:
        """Read to the end and return the answer. Raises TurnFailed, or TurnStopped."""
        self._drop()
        return self._loop.run(self._stream.result())

    def settled(self) -> Answer:
        """Read to the end and return the result of the turn, also when it failed or was stopped."""
        self._drop()
        return self._loop.run(self._stream.settled())

    def cancel(self) -> Turn:
        """Stop the turn; what was said is kept."""
        return self._loop.run(self._stream.cancel())

    def started(self) -> str:
        """Wait until the server has taken the question; the id of its turn."""
        return self._loop.run(self._stream.started())

    def close(self) -> None:
        self._drop()
        self._loop.run(self._stream.close())

    def _drop(self) -> None:
        items, self._items = self._items, None
        if items is not None:
            items.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def turn_id(self) -> str | None:
        return self._stream.turn_id

    @property
    def conversation_id(self) -> str | None:
        return self._stream.conversation_id

    @property
    def cursor(self) -> str:
        return self._stream.cursor

    @property
    def text(self) -> str:
        return self._stream.text

    @property
    def content(self) -> tuple[Part, ...]:
        return self._stream.content

    @property
    def view(self) -> TurnView:
        return self._stream.view

    @property
    def is_over(self) -> bool:
        return self._stream.is_over


class SyncRun:
    """The lines of a run; see `RunStream`."""

    def __init__(self, loop: LoopThread, run: RunStream) -> None:
        self._loop = loop
        self._run = run

    def __iter__(self) -> Iterator[RunLine]:
        return items_of(self._loop, self._run.__aiter__())

    def result(self) -> str:
        return self._loop.run(self._run.result())

    @property
    def turn_id(self) -> str | None:
        return self._run.turn_id


class SyncResource(Generic[Group]):
    """The sync side of a group of verbs."""

    def __init__(self, loop: LoopThread, group: Group) -> None:
        self._loop = loop
        self._group = group


def _blocking(
    verb: Callable[Concatenate[Group, Given], Coroutine[Any, Any, Found]],
) -> Callable[Concatenate[SyncResource[Group], Given], Found]:
    @wraps(verb)
    def call(face: SyncResource[Group], /, *args: Given.args, **kwargs: Given.kwargs) -> Found:
        return face._loop.run(verb(face._group, *args, **kwargs))

    return call


def _iterating(
    verb: Callable[Concatenate[Group, Given], AsyncGenerator[Found, None]],
) -> Callable[Concatenate[SyncResource[Group], Given], Items[Found]]:
    @wraps(verb)
    def call(face: SyncResource[Group], /, *args: Given.args, **kwargs: Given.kwargs) -> Items[Found]:
        return items_of(face._loop, verb(face._group, *args, **kwargs))

    return call


def _streaming(
    verb: Callable[Concatenate[Group, Given], TurnStream],
) -> Callable[Concatenate[SyncResource[Group], Given], Stream]:
    @wraps(verb)
    def call(face: SyncResource[Group], /, *args: Given.args, **kwargs: Given.kwargs) -> Stream:
        return Stream(face._loop, verb(face._group, *args, **kwargs))

    return call


class SyncTurns(SyncResource[Turns]):
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


class SyncConversations(SyncResource[Conversations]):
    list = _iterating(Conversations.list)
    page = _blocking(Conversations.page)
    create = _blocking(Conversations.create)
    get = _blocking(Conversations.get)
    rename = _blocking(Conversations.rename)
    update = _blocking(Conversations.update)
    delete = _blocking(Conversations.delete)
    erase = _blocking(Conversations.erase)
    restore = _blocking(Conversations.restore)
    messages = _iterating(Conversations.messages)
    trace = _iterating(Conversations.trace)
    replay = _blocking(Conversations.replay)
    export = _blocking(Conversations.export)
    import_ = _blocking(Conversations.import_)


class SyncFiles(SyncResource[FileResource]):
    upload = _blocking(FileResource.upload)
    upload_here = _blocking(FileResource.upload_here)
    list = _iterating(FileResource.list)
    get = _blocking(FileResource.get)
    delete = _blocking(FileResource.delete)
    save = _blocking(FileResource.save)
    read = _blocking(FileResource.read)
    chunks = _iterating(FileResource.chunks)
    download = _blocking(FileResource.download)


class SyncAgents(SyncResource[Agents]):
    list = _iterating(Agents.list)
    get = _blocking(Agents.get)
    create = _blocking(Agents.create)
    update = _blocking(Agents.update)
    replace = _blocking(Agents.replace)
    delete = _blocking(Agents.delete)
    rotate_tool_secret = _blocking(Agents.rotate_tool_secret)
    add_skill = _blocking(Agents.add_skill)
    remove_skill = _blocking(Agents.remove_skill)

    def run(self, agent_id: str, prompt: str, *, attachment_ids: "tuple[str, ...] | None" = None) -> SyncRun:
        """Run an agent once, without a conversation."""
        return SyncRun(self._loop, self._group.run(agent_id, prompt, attachment_ids=attachment_ids))


class SyncPages(SyncResource[Pages]):
    list = _iterating(Pages.list)
    get = _blocking(Pages.get)
    create = _blocking(Pages.create)
    update = _blocking(Pages.update)
    delete = _blocking(Pages.delete)


class SyncTables(SyncResource[Tables]):
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


class SyncModels(SyncResource[Models]):
    list = _iterating(Models.list)


class SyncKeys(SyncResource[Keys]):
    list = _iterating(Keys.list)
    create = _blocking(Keys.create)
    revoke = _blocking(Keys.revoke)


class SyncTokens(SyncResource[Tokens]):
    create = _blocking(Tokens.create)


class SyncUsers(SyncResource[Users]):
    list = _iterating(Users.list)
    get = _blocking(Users.get)
    update = _blocking(Users.update)


class SyncErasures(SyncResource[Erasures]):
    start = _blocking(Erasures.start)
    get = _blocking(Erasures.get)


class SyncInvites(SyncResource[Invites]):
    list = _iterating(Invites.list)
    create = _blocking(Invites.create)
    delete = _blocking(Invites.delete)


class SyncSessions(SyncResource[Sessions]):
    list = _iterating(Sessions.list)
    end = _blocking(Sessions.end)
    end_all = _blocking(Sessions.end_all)


class SyncNativeTools(SyncResource[NativeTools]):
    list = _iterating(NativeTools.list)


class SyncWorkspaces(SyncResource[Workspaces]):
    list = _iterating(Workspaces.list)
    get = _blocking(Workspaces.get)
    create = _blocking(Workspaces.create)
    update = _blocking(Workspaces.update)
    delete = _blocking(Workspaces.delete)


class SyncUsage(SyncResource[UsageResource]):
    get = _blocking(UsageResource.get)


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
        self.users = SyncUsers(self._loop, inner.users)
        self.erasures = SyncErasures(self._loop, inner.erasures)
        self.invites = SyncInvites(self._loop, inner.invites)
        self.sessions = SyncSessions(self._loop, inner.sessions)
        self.tools = SyncNativeTools(self._loop, inner.tools)
        self.workspaces = SyncWorkspaces(self._loop, inner.workspaces)
        self.usage = SyncUsage(self._loop, inner.usage)
        self.ask = self.turns.ask
        self.stream = self.turns.stream

    @property
    def place(self) -> ServerAddress:
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
