"""The sync client: the same verbs, for code without a loop. One thread runs the async clients of a process.

Each verb is the async one, wrapped: the same name, the same arguments, the same answers. Async iterators become
iterators. Ctrl-C reaches the caller at once and loses nothing: an event that was under way comes with the next one.

A client survives `fork`, as web servers and task queues use it: the child starts a thread and connections of its own
when it first needs them. A stream belongs to the process that opened it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import Future
from functools import cache, wraps
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from turnkeep_client.account import Erasures, Keys, Models, NativeTools, Tokens, UsageResource, Users, Workspaces
from turnkeep_client.agents import Agents, RunLine, RunStream
from turnkeep_client.client import AsyncTurnkeep
from turnkeep_client.conversations import Conversations, FeedbackResource, ShareLinks
from turnkeep_client.discovery import ServerAddress
from turnkeep_client.files import FileResource
from turnkeep_client.knowledge import Pages, Tables
from turnkeep_client.people import Invites, Sessions
from turnkeep_client.retry import OnTrouble
from turnkeep_client.stream import Answer, Event, TurnStream, TurnView
from turnkeep_client.transport import (
    PATIENCE_SECONDS,
    SILENCE_SECONDS,
    TIMEOUT_SECONDS,
    ClientOptions,
    OptionChanges,
    load_network,
)
from turnkeep_client.turns import Turns
from turnkeep_client.webhooks import Webhooks
from turnkeep_client.wire import Me, Turn
from turnkeep_client.wire.blocks import Part
from turnkeep_client.wire.errors import InvalidRequest

if TYPE_CHECKING:
    import httpx

__all__ = ["Items", "LoopThread", "Stream", "SyncResource", "SyncRun", "Turnkeep"]

Group = TypeVar("Group")
Given = ParamSpec("Given")
Found = TypeVar("Found")


class LoopThread:
    """An event loop in a thread of its own, which starts with the first work. A forked process gets another one."""

    def __init__(self) -> None:
        self._clients = 0
        self._begin()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._begin)

    def _begin(self) -> None:
        """Without a thread. In a forked process that of the parent does not run, and its locks may be held."""
        self._lock = threading.Lock()
        self._inherited = getattr(self, "_running", None)
        """Kept, because the garbage collector would warn of a loop that was never closed."""
        self._running: tuple[asyncio.AbstractEventLoop, threading.Thread] | None = None

    def open(self) -> None:
        """One more client uses it."""
        with self._lock:
            self._clients += 1

    def close(self) -> None:
        """One client less uses it. After the last one the thread ends."""
        with self._lock:
            self._clients -= 1
            if self._clients > 0 or self._running is None:
                return
            loop, thread = self._running
            self._running = None
        asyncio.run_coroutine_threadsafe(loop.shutdown_asyncgens(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def submit(self, work: Coroutine[Any, Any, Found]) -> Future[Found]:
        """Start the work and return at once."""
        return asyncio.run_coroutine_threadsafe(work, self._loop())

    def run(self, work: Coroutine[Any, Any, Found]) -> Found:
        """The outcome of the work, which is given up when the caller is interrupted."""
        future = self.submit(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def _loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._running is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(target=loop.run_forever, name="turnkeep client", daemon=True)
                thread.start()
                self._running = loop, thread
            return self._running[0]


@cache
def shared_loop() -> LoopThread:
    """The thread of all sync clients of this process."""
    return LoopThread()


class ProcessLoop:
    """The loop for what cannot be carried into another process: an iterator or a stream that has begun."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop
        self._process = os.getpid()

    @property
    def is_inherited(self) -> bool:
        """Whether this is a forked process, and another one opened the stream."""
        return self._process != os.getpid()

    def submit(self, work: Coroutine[Any, Any, Found]) -> Future[Found]:
        """Start the work and return at once. Raises InvalidRequest in a forked process."""
        self._check(work)
        return self._loop.submit(work)

    def run(self, work: Coroutine[Any, Any, Found]) -> Found:
        """The outcome of the work. Raises InvalidRequest in a forked process."""
        self._check(work)
        return self._loop.run(work)

    def _check(self, work: Coroutine[Any, Any, Any]) -> None:
        if self.is_inherited:
            work.close()
            raise InvalidRequest(
                "This stream was opened before the process was forked. Open another one here, for example with "
                "`turns.follow(turn_id, after=cursor)`."
            )


class Items(Generic[Found]):
    """An iterator over an async one. An interrupted step is not lost: the next call returns it."""

    def __init__(
        self, loop: ProcessLoop, source: AsyncIterator[Found], close: Callable[[], Coroutine[Any, Any, None]]
    ) -> None:
        self._loop = loop
        self._source = source
        self._close = close
        self._pending: Future[Found] | None = None
        self._is_idle = asyncio.Event()
        """Whether no step is under way. One that is cancelled takes a moment to end."""
        self._is_idle.set()
        self._is_closed = False
        self._changing = threading.Lock()

    def __repr__(self) -> str:
        return "Items(closed)" if self._is_closed else "Items(iterate over them; pages are read as needed)"

    def __iter__(self) -> Iterator[Found]:
        return self

    def __next__(self) -> Found:
        with self._changing:
            if self._is_closed:
                raise StopIteration
            if self._pending is None or self._loop.is_inherited:
                self._pending = self._loop.submit(self._next())
            pending = self._pending
        try:
            found = pending.result()
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
        """End the iteration before its end, also if another thread is in the middle of a step, which then raises
        CancelledError. It does nothing in a forked process."""
        if self._loop.is_inherited:
            return
        with self._changing:
            self._is_closed, pending = True, self._pending
        if pending is not None:
            pending.cancel()
            with contextlib.suppress(BaseException):
                pending.result()
        self._loop.run(self._end())

    async def _next(self) -> Found:
        self._is_idle.clear()
        try:
            return await anext(self._source)
        finally:
            self._is_idle.set()

    async def _end(self) -> None:
        await self._is_idle.wait()
        await self._close()


def items_of(loop: LoopThread, source: AsyncGenerator[Found, None]) -> Items[Found]:
    """The items of a source that is opened now."""
    return Items(ProcessLoop(loop), source, source.aclose)


class Stream:
    """A turn as its reader follows it; see `TurnStream`. Iterate for events, or call `result()`."""

    def __init__(self, loop: LoopThread, stream: TurnStream) -> None:
        self._loop = ProcessLoop(loop)
        self._stream = stream
        self._items: Items[Event] | None = None

    def __repr__(self) -> str:
        return repr(self._stream).replace(type(self._stream).__name__, type(self).__name__, 1)

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        items = self._items
        if items is None:
            items = self._items = Items(self._loop, self._stream, self._stream.close)
        return next(items)

    def words(self) -> Iterator[str]:
        """The text of the answer, as it is streamed: every word once; see `TurnStream.words`."""
        source = self._stream.words()
        return Items(self._loop, source, source.aclose)

    def result(self, *, timeout_seconds: float | None = None) -> Answer:
        """Read to the end and return the answer. Raises TurnFailed, TurnStopped, or WaitTimeout."""
        self._drop()
        return self._loop.run(self._stream.result(timeout_seconds=timeout_seconds))

    def settled(self, *, timeout_seconds: float | None = None) -> Answer:
        """Read to the end and return the result of the turn, also when it failed or was stopped."""
        self._drop()
        return self._loop.run(self._stream.settled(timeout_seconds=timeout_seconds))

    def cancel(self) -> Turn:
        """Stop the turn; what was said is kept."""
        return self._loop.run(self._stream.cancel())

    def started(self) -> str:
        """Wait until the server has taken the question; the id of its turn."""
        return self._loop.run(self._stream.started())

    def close(self) -> None:
        """Close the connection. The stream can be iterated again. It does nothing in a forked process."""
        if not self._loop.is_inherited and not self._drop():
            self._loop.run(self._stream.close())

    def _drop(self) -> bool:
        """End the iteration, which closes the connection; false if there is none."""
        items, self._items = self._items, None
        if items is not None:
            items.close()
        return items is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    @property
    def turn_id(self) -> str | None:
        """Known as soon as the server has taken the question."""
        return self._stream.turn_id

    @property
    def conversation_id(self) -> str | None:
        """Known with the first event."""
        return self._stream.conversation_id

    @property
    def cursor(self) -> str:
        """After the last event that was returned."""
        return self._stream.cursor

    @property
    def text(self) -> str:
        """The text that is being streamed, or the last one; at the end the text of the answer."""
        return self._stream.text

    @property
    def content(self) -> tuple[Part, ...]:
        """Everything that a reader sees of the turn so far: words, steps and files in order."""
        return self._stream.content

    @property
    def view(self) -> TurnView:
        """What a reader sees of the turn so far, in detail."""
        return self._stream.view

    @property
    def is_over(self) -> bool:
        """Whether the last event has been read."""
        return self._stream.is_over


class SyncRun:
    """The lines of a run; see `RunStream`."""

    def __init__(self, loop: LoopThread, run: RunStream) -> None:
        self._loop = loop
        self._run = run

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._run.turn_id or 'not begun yet'}, {self._run.status})"

    def __iter__(self) -> Iterator[RunLine]:
        return items_of(self._loop, self._run.__aiter__())

    def result(self) -> str:
        """Run to the end; the text of the result. Raises RunFailed if there is none."""
        return self._loop.run(self._run.result())

    @property
    def turn_id(self) -> str | None:
        """Known once the run has begun; `turns.get` shows its result and its files."""
        return self._run.turn_id


class SyncResource(Generic[Group]):
    """The sync side of a group of verbs."""

    def __init__(self, loop: LoopThread, group: Group) -> None:
        self._loop = loop
        self._group = group

    def __repr__(self) -> str:
        return repr(self._group)


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
    approve = _blocking(Turns.approve)
    deny = _blocking(Turns.deny)
    decide = _blocking(Turns.decide)
    results = _blocking(Turns.results)
    steer = _blocking(Turns.steer)
    stream_url = _blocking(Turns.stream_url)
    rate = _blocking(Turns.rate)
    unrate = _blocking(Turns.unrate)
    trace = _blocking(Turns.trace)
    timeline = _blocking(Turns.timeline)
    span = _blocking(Turns.span)
    replay = _blocking(Turns.replay)
    regenerate = _streaming(Turns.regenerate)
    edit = _streaming(Turns.edit)


class SyncConversations(SyncResource[Conversations]):
    list = _iterating(Conversations.list)
    page = _blocking(Conversations.page)
    create = _blocking(Conversations.create)
    get = _blocking(Conversations.get)
    rename = _blocking(Conversations.rename)
    update = _blocking(Conversations.update)
    folders = _blocking(Conversations.folders)
    rename_folder = _blocking(Conversations.rename_folder)
    delete = _blocking(Conversations.delete)
    erase = _blocking(Conversations.erase)
    restore = _blocking(Conversations.restore)
    messages = _iterating(Conversations.messages)
    trace = _iterating(Conversations.trace)
    replay = _blocking(Conversations.replay)
    export = _blocking(Conversations.export)
    import_ = _blocking(Conversations.import_)


class SyncShareLinks(SyncResource[ShareLinks]):
    create = _blocking(ShareLinks.create)
    list = _iterating(ShareLinks.list)
    revoke = _blocking(ShareLinks.revoke)
    open = _blocking(ShareLinks.open)
    read_file = _blocking(ShareLinks.read_file)


class SyncFeedback(SyncResource[FeedbackResource]):
    list = _iterating(FeedbackResource.list)
    of = _iterating(FeedbackResource.of)
    export = _blocking(FeedbackResource.export)


class SyncFiles(SyncResource[FileResource]):
    upload = _blocking(FileResource.upload)
    upload_here = _blocking(FileResource.upload_here)
    list = _iterating(FileResource.list)
    get = _blocking(FileResource.get)
    delete = _blocking(FileResource.delete)
    save = _blocking(FileResource.save)
    text = _blocking(FileResource.text)
    thumbnail = _blocking(FileResource.thumbnail)
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
    sandbox_images = _iterating(Agents.sandbox_images)
    rotate_tool_secret = _blocking(Agents.rotate_tool_secret)
    add_skill = _blocking(Agents.add_skill)
    remove_skill = _blocking(Agents.remove_skill)
    try_unsaved = _blocking(Agents.try_unsaved)
    mcp_tools = _blocking(Agents.mcp_tools)
    mcp_connections = _iterating(Agents.mcp_connections)
    delete_mcp_connection = _blocking(Agents.delete_mcp_connection)

    def run(self, agent_id: str, prompt: str, *, attachment_ids: Sequence[str] | None = None) -> SyncRun:
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


class SyncWebhooks(SyncResource[Webhooks]):
    list = _iterating(Webhooks.list)
    create = _blocking(Webhooks.create)
    get = _blocking(Webhooks.get)
    update = _blocking(Webhooks.update)
    delete = _blocking(Webhooks.delete)
    deliveries = _iterating(Webhooks.deliveries)
    redeliver = _blocking(Webhooks.redeliver)


class SyncWorkspaces(SyncResource[Workspaces]):
    list = _iterating(Workspaces.list)
    get = _blocking(Workspaces.get)
    create = _blocking(Workspaces.create)
    update = _blocking(Workspaces.update)
    delete = _blocking(Workspaces.delete)


class SyncUsage(SyncResource[UsageResource]):
    get = _blocking(UsageResource.get)
    csv = _blocking(UsageResource.csv)
    turns = _iterating(UsageResource.turns)


class Turnkeep:
    """A Turnkeep server, from Python code without a loop. Takes what `AsyncTurnkeep` takes.

    with Turnkeep() as turnkeep:
        print(turnkeep.ask("Hello?").text)

    All clients of a process share one thread. A client may be used by many threads at once, and after a fork.
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
            transport=transport,
        )
        load_network()
        self._use(inner, shared_loop())
        self._loop.open()
        self._is_open = True

    def _use(self, inner: AsyncTurnkeep, loop: LoopThread) -> None:
        self._inner = inner
        self._loop = loop
        self._is_open = False
        """Whether the thread counts this client. One that was made from another client counts as that one."""
        self.turns = SyncTurns(loop, inner.turns)
        self.conversations = SyncConversations(loop, inner.conversations)
        self.shares = SyncShareLinks(loop, inner.shares)
        self.feedback = SyncFeedback(loop, inner.feedback)
        self.files = SyncFiles(loop, inner.files)
        self.agents = SyncAgents(loop, inner.agents)
        self.pages = SyncPages(loop, inner.pages)
        self.tables = SyncTables(loop, inner.tables)
        self.models = SyncModels(loop, inner.models)
        self.keys = SyncKeys(loop, inner.keys)
        self.tokens = SyncTokens(loop, inner.tokens)
        self.users = SyncUsers(loop, inner.users)
        self.erasures = SyncErasures(loop, inner.erasures)
        self.invites = SyncInvites(loop, inner.invites)
        self.sessions = SyncSessions(loop, inner.sessions)
        self.tools = SyncNativeTools(loop, inner.tools)
        self.webhooks = SyncWebhooks(loop, inner.webhooks)
        self.workspaces = SyncWorkspaces(loop, inner.workspaces)
        self.usage = SyncUsage(loop, inner.usage)
        self.ask = self.turns.ask
        self.stream = self.turns.stream

    def __repr__(self) -> str:
        return repr(self._inner).replace(type(self._inner).__name__, type(self).__name__, 1)

    @property
    def place(self) -> ServerAddress:
        """The server that is asked."""
        return self._inner.place

    @property
    def options(self) -> ClientOptions:
        """For whom the client acts, and how long it waits."""
        return self._inner.options

    def with_options(self, **changes: Unpack[OptionChanges]) -> Self:
        """A client with other options on the same connections; see `AsyncTurnkeep.with_options`."""
        other = object.__new__(type(self))
        other._use(self._inner.with_options(**changes), self._loop)
        return other

    def as_user(self, user: str, *, workspace_id: str | None = None) -> Self:
        """The same server for one user of yours (service keys only). It need not be closed."""
        return self.with_options(user=user, workspace_id=workspace_id or self.options.workspace_id)

    def me(self) -> Me:
        """Who the server takes this client for: user, workspace, role and scopes, and the limits of files."""
        return self._loop.run(self._inner.me())

    def close(self) -> None:
        """Close the connections. Clients made by `as_user` and `with_options` leave them open."""
        if self._is_open:
            self._is_open = False
            self._loop.run(self._inner.close())
            self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
