"""What a check-up finds: one part at a time, in one of four states, and what to do about it."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal

from msgspec import Struct

from turnkeep.errors import TurnkeepError
from turnkeep.files.orphans import BagReport

State = Literal["ok", "warn", "fail", "skip"]

SECONDS = 5.0
"""How long any one part is waited for."""


class Finding(Struct, frozen=True, kw_only=True):
    """What was found about one part. `todo` is what to do about it, where it is not well."""

    name: str
    state: State
    says: str
    todo: str | None = None


class Trouble(Exception):
    """A check that did not pass, with what to do."""

    def __init__(self, says: str, todo: str, *, state: State = "fail") -> None:
        super().__init__(says)
        self.says = says
        self.todo = todo
        self.state = state


async def found(name: str, check: Callable[[], Awaitable[str | None]]) -> Finding:
    """What the check came to. It says what is well, says nothing of what is not used, or raises Trouble."""
    try:
        async with asyncio.timeout(2 * SECONDS):
            says = await check()
    except Trouble as trouble:
        return Finding(name=name, state=trouble.state, says=trouble.says, todo=trouble.todo)
    except TimeoutError:
        return Finding(
            name=name, state="fail", says=f"gave no answer within {2 * SECONDS:g} s", todo="Is it overloaded?"
        )
    except TurnkeepError as exc:
        return Finding(name=name, state="fail", says=exc.detail)
    if says is None:
        return Finding(name=name, state="skip", says="is not used here")
    return Finding(name=name, state="ok", says=says)


def files_found(report: BagReport) -> str:
    if report.missing:
        raise Trouble(
            f"the bytes of {len(report.missing)} of {report.files} files are not there: "
            f"{', '.join(report.missing[:3])}{', …' if len(report.missing) > 3 else ''}",
            "Bring them back from a backup of the bucket; a file that is deleted is not asked for any more.",
        )
    if report.orphans:
        raise Trouble(
            f"{len(report.orphans)} objects belong to no file", "The server removes them once a day.", state="warn"
        )
    return f"{report.files} files, all of them there"


def words_of(exc: Exception) -> str:
    return exc.detail if isinstance(exc, TurnkeepError) else str(exc) or type(exc).__name__
