"""Writeback: the files that a turn made or changed are sent to its server, before its last line."""

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import ExitStack
from typing import Any

from turnkeep.errors import InvalidRequest
from turnkeep.files.names import clean_name
from turnkeep.ids import new_call_id
from turnkeep.sandbox.line_stream import LineStream
from turnkeep.sandbox.server_client import ServerClient
from turnkeep.sandbox.workspace import Asset, Workspace
from turnkeep_client.wire.events import Step

NAME = "save files"
_NAMED = 5


async def write_back(
    workspace: Workspace,
    server: ServerClient,
    otp_upload: str,
    lines: LineStream,
    *,
    max_files: int,
    max_file_bytes: int | None,
) -> None:
    """Collect and upload the files. Files that cannot be kept are named in a failed step: the answer may mention them.

    Raises ServerCallFailed or WorkspaceFailed; then nothing was written back.
    """
    collected = await workspace.collect()
    with ExitStack() as files:
        for asset in collected.assets:
            files.callback(asset.file.close)
        kept, reasons = _choose(collected.assets, max_files=max_files, max_file_bytes=max_file_bytes)
        if collected.skipped:
            reasons.append(f"{_names(collected.skipped)}: not a regular file")
        if kept:
            await server.results(otp_upload, kept)
            lines.log("info", f"Handed {len(kept)} files back")
    if reasons:
        lines.step(Step(id=new_call_id(), name=NAME, status="failed", error=f"Not kept: {'; '.join(reasons)}."))


class WritebackTask:
    """The writeback of one turn, if there is a token for it.

    The recorder finishes a write that has begun, even when its turn is stopped. A stopped turn must write nothing back,
    so this task can be stopped by itself.
    """

    def __init__(self, work: Callable[[str], Coroutine[Any, Any, None]], token: str | None) -> None:
        self._work = work
        self._token = token
        self._task: asyncio.Task[None] | None = None

    async def run(self) -> None:
        if self._token:
            self._task = asyncio.create_task(self._work(self._token), name="writeback")
            await self._task

    async def stop(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait({self._task})


def _choose(assets: tuple[Asset, ...], *, max_files: int, max_file_bytes: int | None) -> tuple[list[Asset], list[str]]:
    """The files that may be written back, and why others may not. One bad file must not stop the good ones."""
    unnameable = [asset for asset in assets if not _can_be_called(asset.path)]
    assets = tuple(asset for asset in assets if asset not in unnameable)
    large = [asset for asset in assets if max_file_bytes is not None and asset.size > max_file_bytes]
    fitting = [asset for asset in assets if asset not in large]
    reasons = []
    if unnameable:
        reasons.append(f"{_names([asset.path for asset in unnameable])}: no name for a file")
    if large:
        reasons.append(f"{_names([asset.path for asset in large])}: larger than {max_file_bytes:,} bytes")
    if len(fitting) > max_files:
        reasons.append(f"{_names([asset.path for asset in fitting[max_files:]])}: more than {max_files} files")
    return fitting[:max_files], reasons


def _can_be_called(path: str) -> bool:
    """Whether the server accepts a file of this name."""
    try:
        clean_name(path)
    except InvalidRequest:
        return False
    return True


def _names(paths: tuple[str, ...] | list[str]) -> str:
    shown = ", ".join(path[:100] for path in paths[:_NAMED])
    return shown if len(paths) <= _NAMED else f"{shown} and {len(paths) - _NAMED} more"
