"""A worker process as a test sees it: commands go in, reports come out, signals hit it."""

import asyncio
import os
import signal
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import TypeVar

import msgspec
import psutil

from tests.faults.worker_protocol import (
    Acknowledged,
    Adopted,
    Arm,
    Armed,
    Ask,
    Command,
    Ended,
    Fault,
    Go,
    LetGo,
    Ready,
    Refused,
    Report,
    Serving,
    Unexpected,
    line,
)
from turnkeep.ids import ConversationId, TurnId
from turnkeep.model.turns import IfBusy, TurnStatus

ROOT = Path(__file__).parents[2]
PATIENCE_SECONDS = 40.0
"""Nothing here takes a tenth of it, unless it hangs or the machine is very busy."""

Found = TypeVar("Found")


class WorkerDied(Exception):
    """The process ended while something was expected of it. The message has the end of its standard error."""


class WorkerProcess:
    """One process, from its start to its end."""

    def __init__(self, process: asyncio.subprocess.Process, errors: Path) -> None:
        self.reports: list[Report] = []
        self._process = process
        self._errors = errors
        self._numbers = count(1)
        self._heard = asyncio.Condition()
        self._is_silent = False
        self._listening = asyncio.create_task(self._listen())

    @property
    def pid(self) -> int:
        return self._process.pid

    async def ready(self) -> None:
        await self._until(lambda: self._any(Ready) or None)

    async def serving(self) -> None:
        await self._until(lambda: self._any(Serving) or None)

    @property
    def port(self) -> int:
        """Where its API is, if it has one."""
        return self._any(Serving)[0].port

    async def ask(
        self,
        text: str,
        *,
        conversation_id: ConversationId | None = None,
        if_busy: IfBusy = "reject",
        idempotency_key: str | None = None,
    ) -> Acknowledged | Refused:
        """The answer to a claim. Raises WorkerDied if the process died before it gave one."""
        number = next(self._numbers)
        self._tell(
            Ask(
                text=text,
                conversation_id=conversation_id,
                if_busy=if_busy,
                idempotency_key=idempotency_key,
                number=number,
            )
        )

        def answer() -> Acknowledged | Refused | None:
            answers = (each for each in self.reports if isinstance(each, Acknowledged | Refused))
            return next((each for each in answers if each.number == number), None)

        return await self._until(answer)

    def go(self) -> None:
        """Let the model speak."""
        self._tell(Go())

    async def arm(self, fault: Fault) -> None:
        armed = len(self._any(Armed))
        self._tell(Arm(fault=fault))
        await self._until(lambda: len(self._any(Armed)) > armed or None)

    async def ended(self, turn_ids: Iterable[TurnId]) -> dict[TurnId, TurnStatus]:
        """Wait until this worker has settled all of these; return how they ended."""
        wanted = set(turn_ids)

        def ends() -> dict[TurnId, TurnStatus] | None:
            found = {each.turn_id: each.status for each in self._any(Ended) if each.turn_id in wanted}
            return found if found.keys() == wanted else None

        return await self._until(ends)

    async def let_go(self, turn_id: TurnId) -> LetGo:
        """Wait until this worker has noticed that the turn is not its own."""
        return await self._until(lambda: next((each for each in self._any(LetGo) if each.turn_id == turn_id), None))

    async def adopted(self, turn_id: TurnId) -> Adopted:
        return await self._until(lambda: next((each for each in self._any(Adopted) if each.turn_id == turn_id), None))

    async def stopped(self) -> None:
        """Wait until the process stands still."""
        process = psutil.Process(self.pid)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while process.status() != psutil.STATUS_STOPPED:  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(0.005)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    async def died(self) -> int:
        """Wait for the process to end; return how. All that it reported has been heard by then."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            await self._listening
            return await self._process.wait()

    async def leave(self) -> None:
        """An orderly end: SIGTERM, hand over, exit."""
        self.send(signal.SIGTERM)
        ended_with = await self.died()
        assert ended_with == 0, self._last_words()
        self.check()

    def check(self) -> None:
        """The engine met nothing unexpected."""
        assert self._any(Unexpected) == [], self._last_words()

    async def end(self) -> None:
        """However it is, it is gone afterwards."""
        if self._process.returncode is None:
            self._process.kill()
        await self.died()

    def _any(self, kind: type[Found]) -> list[Found]:
        return [each for each in self.reports if isinstance(each, kind)]

    def _tell(self, command: Command) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line(command))

    async def _until(self, found: Callable[[], Found | None]) -> Found:
        """What `found` returns once it returns something; looked at after every report."""
        async with asyncio.timeout(PATIENCE_SECONDS), self._heard:
            while (value := found()) is None:
                if self._is_silent:
                    raise WorkerDied(self._last_words())
                await self._heard.wait()
            return value

    async def _listen(self) -> None:
        assert self._process.stdout is not None
        async for text in self._process.stdout:
            async with self._heard:
                self.reports.append(msgspec.json.decode(text, type=Report))
                self._heard.notify_all()
        async with self._heard:
            self._is_silent = True
            self._heard.notify_all()

    def _last_words(self) -> str:
        said = "\n".join(map(repr, self.reports[-5:]))
        return f"{said}\n{self._errors.read_text(errors='replace')[-4000:]}"


def clean_environment() -> dict[str, str]:
    """The environment of a process of this checkout, without what the caller has set for a Turnkeep of their own."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TURNKEEP_")}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "clients" / "python" / "src"), str(ROOT)])
    }
