"""Announcing: files that a sandbox wrote back become events, each once.

Whoever took the upload only left rows and a number on the turn (only the holder appends events). The holder hears the
number with every record and every renewal, and reads the rows when it has grown.
"""

from typing import Protocol

from turnkeep.engine.leases import HeldLease
from turnkeep.engine.recorder import Recorder
from turnkeep.ids import TurnId
from turnkeep.model.files import File
from turnkeep_client.wire.events import Files


class WrittenFiles(Protocol):
    """The one verb of the store that this needs."""

    async def written_files(self, turn_id: TurnId) -> list[File]: ...


class Announcer:
    """The files of one turn, in the hands of its holder."""

    def __init__(self, store: WrittenFiles, recorder: Recorder, lease: HeldLease) -> None:
        self._store = store
        self._recorder = recorder
        self._lease = lease

    async def untold(self, *, look: bool = False) -> tuple[Files, ...]:
        """An event for the files that no event has told of yet, if there are any.

        The store is asked only where it has said that there are more, or with `look`: at the end of a turn that ran
        in a sandbox, whose last files may be younger than the last renewal.
        """
        told = {file.id for event in self._recorder.events if isinstance(event, Files) for file in event.files}
        if not look and max(self._recorder.files_written, self._lease.files_written) <= len(told):
            return ()
        written = await self._store.written_files(self._recorder.turn_id)
        new = tuple(file.as_wire() for file in written if file.id not in told)
        return (Files(files=new),) if new else ()

    async def announce(self, *, look: bool = False) -> None:
        """Record that event now. For a moment in which nothing is being spoken, since it replaces previews."""
        if events := await self.untold(look=look):
            await self._recorder.record(events=events)
